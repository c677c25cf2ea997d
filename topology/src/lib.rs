//! What the machines look like: the graph of sockets, switches, GPUs and NICs, the paths between them, the
//! search for rings and trees, and the placement of a mesh.
