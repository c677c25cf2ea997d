//! What the machines look like: the graph of sockets, switches, GPUs and NICs, the paths between them, the search
//! for rings and trees, and the placement of a mesh.
//!
//! | module | what it holds | does IO |
//! |---|---|---|
//! | [`model`] | one host as its parts ([`System`]), and every constant with its source | no |
//! | [`graph`] | nodes and directed links with GB/s and µs, derived from a system | no |
//! | [`path`] | for every pair the class, bandwidth, latency, hops and the reason | no |
//! | [`search`] | rings and trees as channels × bandwidth | no |
//! | [`formats`] | readers and writers: NCCL XML, hwloc XML, `nvidia-smi topo -m`, JSON, Graphviz, SVG | no |
//! | [`library`] | machines known from their datasheets | no |
//! | [`cluster`] | many hosts joined by rails or leaf and spine | no |
//! | [`route`] | the links of a whole cluster, and which of them a transfer crosses | no |
//! | [`placement`] | which rank of a mesh sits where | no |
//! | [`agreement`] | a hash of what was derived, and the first difference between two | no |
//! | [`rdma`] | RDMA devices: ports and addresses to use, and whether verbs join two ranks | no |
//! | [`providers`] | looks at this machine: hwloc, sysfs, NVML, measured overrides | yes |
//!
//! Units everywhere: GB/s is 1e9 bytes per second in one direction, µs are microseconds.
//!
//! This crate depends on no other crate of the workspace and knows neither sockets nor collectives.
//!
//! ```
//! let system = nd_topology::library::machine("dgx-h100")?;
//! let graph = nd_topology::Graph::new(&system)?;
//! let paths = nd_topology::Paths::new(&graph);
//! let (a, b) = (graph.node("GPU0")?, graph.node("GPU5")?);
//! assert_eq!(paths.between(a, b).class.to_string(), "NVL");
//! # Ok::<(), nd_topology::Error>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agreement;
pub mod cluster;
mod error;
pub mod formats;
pub mod graph;
pub mod library;
pub mod model;
pub mod path;
pub mod placement;
pub mod providers;
pub mod rdma;
pub mod route;
pub mod search;
mod text;

pub use cluster::Cluster;
pub use error::{Error, Result};
pub use graph::Graph;
pub use model::System;
pub use path::{PathClass, Paths};
pub use route::Routes;
pub use text::{edits, printable};
