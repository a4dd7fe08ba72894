// Gets the explanation of the running model, then lets the page draw it.

import { get } from "./api.js";
import { $ } from "./dom.js";

try {
  $("data").textContent = JSON.stringify(await get(`explain.json${location.search}`));
  await import("./explain.js");
} catch (error) {
  $("what").textContent = error.message;
}
