//! How bytes move between two ranks.
//!
//! May depend on `nd-topology`, which knows what RDMA ports there are, and on `libibverbs-sys`, which lies in this folder;
//! knows nothing of collectives. One small vocabulary serves every kind of link:
//!
//! * a **window** ([`Window`]): a part of a rank's [`Region`], memory that peers may write into, and, where the
//!   link allows it, map or read;
//! * **put** ([`Link::put`]): write local memory into the peer's region; **signal** ([`Signal`]): raise a counter
//!   in the peer's region, seen only after everything that was put before it on that link;
//! * **wait** ([`Endpoint::wait`]): until a condition over own memory holds; every wait has a deadline;
//! * **flush** ([`Link::flushed`]): local memory that was put may be reused;
//! * **map** ([`Link::map`]): the peer's region as plain memory, so that a reduction reads it in place.
//!
//! | module | between | how |
//! |---|---|---|
//! | [`local`] | threads of one process | one mapping; also breaks things on purpose, for tests |
//! | [`shm`] | processes of one host | an unnamed memory file passed over a Unix socket; futex to sleep |
//! | [`tcp`] | any hosts | authenticated streams, payload received straight into its destination; encrypted on request |
//! | [`verbs`] | hosts with InfiniBand or RoCE | the device writes into the peer's memory; joined over TCP |
//!
//! RDMA devices reach memory of other devices as well, such as GPUs: [`Endpoint::register_dma_buf`].
//!
//! For when links have failed, ranks exchange short messages beside them ([`Endpoint::parley`]).
//!
//! [`Endpoint::open`] makes the [`Card`] that peers need to reach this rank; with the cards of all ranks,
//! [`Opening::connect`] gives the [`Endpoint`]. How the cards travel is not this crate's business.

/// The atomic types of the lock-free parts, which the model checker in `nd-tests` compiles with its own.
mod atomics {
    pub use std::sync::atomic::{AtomicU32, Ordering, fence};
}
mod bell;
mod card;
mod config;
mod cores;
mod derive;
mod dma_buf;
mod endpoint;
mod error;
mod fork;
mod host;
mod link;
pub mod local;
mod mapped;
mod parley;
mod region;
pub mod secure;
pub mod shm;
mod sleep_word;
mod stop;
pub mod strangers;
mod sys;
pub mod tcp;
pub mod verbs;
mod voice;

pub use card::Card;
pub use config::{Choice, Config, Family, PortRange};
pub use dma_buf::{DmaBuf, DmaBufRegistration};
pub use endpoint::{DerivedCard, Deriving, Endpoint, Opening, Step, Traffic};
pub use error::{Error, Result};
pub use fork::Forked;
pub use host::{HostId, host_name, last_cache, process_is_stopped};
pub use link::{Abilities, Cost, INLINE_PART, Link, Part, Signal, Ticket, Transport};
pub use parley::{Heard, Parley};
pub use region::{Region, Window};
pub use stop::{Going, OnStop, Stop};
pub use verbs::VerbsSettings;

/// The version of everything that ranks say to each other. Ranks of different versions refuse each other.
pub const PROTOCOL: u32 = 11;
