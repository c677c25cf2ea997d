//! Which rank failed first, by its number in the job.

use std::time::Duration;

use nd_comm::prelude::Communicator;

use crate::error::Error;

/// Ranks that are alive have so long to come and say so, unless a call may take less.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a failed call in some group followed from. A group numbers its ranks by itself, and of its members many only followed
/// others, from group to group; so all ranks that are left ask each other in the communicator that the groups were made of,
/// which does nothing else: there the rank that is missing is missed by everyone, under its own number.
pub(super) fn first(job: &Communicator, error: Error) -> Error {
    match error {
        Error::Comm(noticed) => match job.with_timeout(job.timeout().min(PATIENCE)).barrier() {
            Err(nd_comm::Error::Timeout { standstill, .. }) if !standstill.missing.is_empty() => {
                let missing = standstill.missing.iter().map(|missing| standstill.name(missing.rank));
                let missing = missing.collect::<Vec<_>>().join(", ");
                Error::Stuck { missing, within: standstill.after, noticed: Box::new(noticed) }
            }
            Err(e) => Error::Comm(e),
            // All are there: they disagree about the call itself.
            Ok(()) => Error::Comm(noticed),
        },
        // All ranks have it.
        Error::NotFinite { .. } => error,
        // The others learn at once whose it is.
        error => {
            job.abort();
            error
        }
    }
}
