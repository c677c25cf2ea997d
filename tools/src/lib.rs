//! What the commands share.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | starts ranks as processes of this host |
//! | [`log`], [`say`] | where warnings go; lines that ranks do not mix |
//! | `draw` | pictures of curves |
//! | `table`, `units` | plain tables; numbers with units — *pure* |
//! | [`bench`](mod@bench) | `nd-bench` |
//! | [`topo`] | `nd-topo` |
//! | [`train`] | `nd-train` |

pub mod bench;
mod draw;
pub mod launch;
pub mod log;
pub mod say;
mod table;
pub mod topo;
pub mod train;
mod units;
