//! The functions of libibverbs (rdma-core), found at run time.
//!
//! One binary runs on machines with and without rdma-core: nothing is linked, [`library`] opens `libibverbs.so.1` when it
//! is first asked for, and never closes it, since providers that the library has loaded do not survive that.
//!
//! | module | what |
//! |---|---|
//! | [`bindings`] | types, constants and functions, generated once from `<infiniband/verbs.h>` |
//! | [`inline`] | what the header defines in place: calls through the operations of a context |
//!
//! * **Versions of symbols.** The library has some functions in two versions; a plain look-up gives the newer ones, which
//!   are those of the header.
//! * **Functions that older libraries lack** are each a `Result` in [`Symbols`]; [`REQUIRED`] are those without which
//!   nothing works, and [`library`] refuses a library that lacks one of them.
//! * **Structures that grow.** [`inline::query_port`] is the only function used here that fills a structure which newer
//!   libraries have made longer.
#![allow(unsafe_code)] // calls into a C library

#[allow(
    clippy::all,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
pub mod bindings;
pub mod inline;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

pub use bindings::Symbols;

/// The name by which the library is looked for. The one without a version is there only where programs are built.
pub const NAME: &str = "libibverbs.so.1";

/// Why there is no library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// It cannot be opened.
    Library {
        /// The name that was looked for.
        name: String,
        /// The linker's words.
        why: String,
    },
    /// It lacks a function without which nothing works.
    Function {
        /// The name that was looked for.
        name: String,
        /// Which one.
        function: &'static str,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Library { name, why } => {
                write!(f, "{name} cannot be opened ({why}); install rdma-core's libibverbs and its providers")
            }
            Missing::Function { name, function } => {
                write!(f, "{name} has no {function}; install a newer libibverbs (rdma-core)")
            }
        }
    }
}

impl std::error::Error for Missing {}

/// The library of this machine, opened by whoever asks first; the answer stays the same from then on.
///
/// # Errors
/// See [`Missing`].
pub fn library() -> Result<&'static Symbols, Missing> {
    static LIBRARY: OnceLock<Result<Symbols, Missing>> = OnceLock::new();
    LIBRARY.get_or_init(|| open(Path::new(NAME))).as_ref().map_err(Missing::clone)
}

macro_rules! required {
    ($($function:ident),* $(,)?) => {
        /// The functions without which nothing works.
        pub const REQUIRED: &[&str] = &[$(stringify!($function)),*];

        /// The first of them that is not there.
        fn lacking(symbols: &Symbols) -> Option<&'static str> {
            $(if symbols.$function.is_err() {
                return Some(stringify!($function));
            })*
            None
        }
    };
}

required!(
    ibv_get_device_list,
    ibv_free_device_list,
    ibv_get_device_name,
    ibv_open_device,
    ibv_close_device,
    ibv_query_device,
    ibv_query_port,
    ibv_query_gid,
    ibv_alloc_pd,
    ibv_dealloc_pd,
    ibv_reg_mr,
    ibv_dereg_mr,
    ibv_create_comp_channel,
    ibv_destroy_comp_channel,
    ibv_create_cq,
    ibv_destroy_cq,
    ibv_get_cq_event,
    ibv_ack_cq_events,
    ibv_create_srq,
    ibv_destroy_srq,
    ibv_create_qp,
    ibv_modify_qp,
    ibv_destroy_qp,
    ibv_get_async_event,
    ibv_ack_async_event,
    ibv_fork_init,
);

fn open(name: &Path) -> Result<Symbols, Missing> {
    let text = name.display().to_string();
    let missing = |e: libloading::Error| Missing::Library { name: text.clone(), why: e.to_string() };
    // SAFETY: whoever is called by this name is rdma-core's library, whose start-up code may run in any process. It stays
    // open: `Symbols` is kept for the life of the process by `library`, and forgotten by the tests.
    let symbols = unsafe { Symbols::new(name) }.map_err(missing)?;
    match lacking(&symbols) {
        None => Ok(symbols),
        Some(function) => {
            std::mem::forget(symbols);
            Err(Missing::Function { name: text, function })
        }
    }
}

#[cfg(test)]
mod tests;
