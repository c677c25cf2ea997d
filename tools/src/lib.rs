//! What the commands share.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | starts ranks as processes of this host |
//! | [`log`] | where warnings go |
//! | [`bench`](mod@bench) | `nd-bench` |
//! | [`topo`] | `nd-topo` |

pub mod bench;
pub mod launch;
pub mod log;
pub mod topo;
