//! Which rank of a mesh sits where, so that the heaviest traffic has the fastest links.
//!
//! ```
//! use nd_topology::placement::{Mesh, Model, place};
//! use nd_topology::{Cluster, cluster::Network, library};
//!
//! let cluster = Cluster::uniform("two", library::machine("dgx-h100")?, 2, Network::default(), 32)?;
//! let mesh = Mesh::parse("tp=8,dp_shard=2", cluster.ranks())?;
//! let placed = place(&cluster, &mesh, &Model::default())?;
//! assert_eq!(placed.rows.last().unwrap().link, "NVL"); // tensor parallelism stays inside a host
//! # Ok::<(), nd_topology::Error>(())
//! ```

mod cost;
mod mesh;
mod solve;
pub mod traffic;

pub use cost::{Ring, ring};
pub use mesh::{Axis, Mesh};
pub use solve::{Placement, Row, place, place_inside};
pub use traffic::Model;
