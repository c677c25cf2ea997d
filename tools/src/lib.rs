//! What the commands share.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | starts ranks as processes of this host |
//! | [`log`] | where warnings go |
//! | `draw` | pictures of curves |
//! | `table`, `units` | plain tables; numbers with units — *pure* |
//! | [`bench`](mod@bench) | `nd-bench` |
//! | [`topo`] | `nd-topo` |
//! | [`train`] | `nd-train` |

pub mod bench;
mod draw;
pub mod launch;
pub mod log;
mod table;
pub mod topo;
pub mod train;
mod units;
