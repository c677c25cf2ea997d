//! Warnings that the ranks of a host have in common, and that one of them says for all.

use std::fmt;

use crate::Region;

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Names of `ND_IB_HCA` that match nothing.
    Filter,
    /// Verbs are not used, as is known before ranks connect or found while they do.
    NoVerbs,
    /// Ports are used that are not the nearest.
    Farther,
    /// Not all rails are used.
    Rails,
    /// Memory is copied that could not be registered.
    Copies,
}

/// Logs a warning of the rank that has this region, unless one that shares memory with it, or itself, has logged one on the
/// topic; then it is for those who look closely. Ranks that were told to use verbs or TCP inside a host share no memory.
pub(crate) fn warn(region: &Region, topic: Topic, text: fmt::Arguments<'_>) {
    if region.raise(topic as u32) {
        tracing::warn!("{text}");
    } else {
        tracing::debug!("{text}");
    }
}
