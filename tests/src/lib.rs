//! Helpers for the tests that cross crates, processes and hosts; the tests themselves lie in `tests/tests/`.
//!
//! | module | what |
//! |---|---|
//! | [`worlds`] | ranks as threads of one process, over every transport, real or broken on purpose |
//! | [`oracle`] | the reproducible order of reduction, in a few lines |
//! | [`sample`] | element types, with values to test them on |

pub mod oracle;
pub mod sample;
pub mod worlds;
