#!/usr/bin/env bash
# A shell script for llama-server, with curl and sed only: compat_shell.sh URL
# Prints a line for each step: its name, a tab, and what the script found, as JSON.
set -euo pipefail
url=$1
say() { printf '%s\t%s\n' "$1" "$2"; }
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -1; }

# wait for the server, as start scripts do
for _ in $(seq 100); do
    [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/health")" = 200 ] && break
    sleep 0.1
done
say ready "$(curl -sf "$url/health")"
say "headers of JSON" "\"$(curl -sI "$url/health" | tr -d '\r' | sed -n 's/^[Cc]ontent-[Tt]ype: //p')\""
say completion "$(curl -sf "$url/completion" -H 'Content-Type: application/json' \
    -d '{"prompt": "Once upon a time", "n_predict": 4, "temperature": 0}')"
# curl's default media type, that of forms
say "without a media type" "$(curl -sf "$url/completion" -d '{"prompt": "Once", "n_predict": 2}')"
say "from a file" "$(printf '{"content": "the cat"}' | curl -sf "$url/tokenize" --data-binary @-)"
content=$(curl -sf "$url/completion" -d '{"prompt": "Once", "n_predict": 3}' | field content)
say "a field by sed" "{\"found\": $([ -n "$content" ] && echo true || echo false)}"
# the lines of a stream, one by one
curl -sfN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
    "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": true}' |
    { first='' last=''
      while IFS= read -r line; do
          [ "${line#data: }" = "$line" ] && continue
          [ -n "$first" ] || first=${line#data: }
          last=${line#data: }
      done
      say "the first event" "$first"
      say "the last event" "{\"type\": \"$last\"}"; }
say "a status" "$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/completions" -d '{"n": 1}')"
say "fail on an error" "$(curl -sf "$url/completion" -d '{"n_predict": 1}' -o /dev/null || echo $?)"
say "expect 100" "$(curl -sf "$url/tokenize" -H 'Expect: 100-continue' -d '{"content": "a"}')"
say "HTTP/1.0" "$(curl -sf0 "$url/tokenize" -d '{"content": "a"}')"
say "a counter" "$(curl -sf "$url/metrics" | sed -n 's/^llamacpp:tokens_predicted_total //p')"
say "models" "$(curl -sf "$url/v1/models")"
