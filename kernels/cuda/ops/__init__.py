"""ops: which kernels compute which op, a module for each family; importing fills the tables."""
