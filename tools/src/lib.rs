//! What the commands share.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | starts ranks as processes of this host |
//! | [`bench`] | `nd-bench` |
//! | [`topo`] | `nd-topo` |

pub mod bench;
pub mod launch;
pub mod topo;
