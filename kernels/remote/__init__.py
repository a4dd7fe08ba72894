"""remote: devices of other processes and machines, over TCP. `docs/cluster.md` explains them."""
