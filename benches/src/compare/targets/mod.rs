//! What ours is to reach, against the fastest peer and against what the machine allows. All of it is *pure*.
//!
//! | file | what |
//! |---|---|
//! | `list` | the targets, and the cases that they need |
//! | `verdict` | which of them hold, from what was measured |
//! | `alone` | those that need no peer |
//! | `text` | the verdicts as a table |

mod alone;
mod list;
mod text;
mod verdict;

pub use list::{cases, has_limit};
pub use text::text;
pub use verdict::{Row, rows};
