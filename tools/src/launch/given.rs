//! Whether a launcher has started this process as a rank, and the settings that it has.

use nd_comm::config::Config;
use nd_comm::launch::Launch;
use nd_comm::prelude::Communicator;

/// The rank that a launcher gave this process, if one started it.
///
/// # Errors
/// What is wrong with the launcher's variables: a rank without a size is a launcher's mistake, not a wish to start ranks here.
pub fn given() -> nd_comm::Result<Option<Launch>> {
    const RANKS: [&str; 6] =
        ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "JOB_COMPLETION_INDEX"];
    match Launch::from_env() {
        Ok(launch) => Ok(Some(launch)),
        Err(e) if RANKS.iter().any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty())) => Err(e),
        Err(_) => Ok(None),
    }
}

/// The settings of this process. What is wrong with them is told to the other ranks, if it is one of several.
pub fn settings() -> nd_comm::Result<Config> {
    Config::from_env().inspect_err(|e| {
        if let Ok(Some(launch)) = given() {
            Communicator::decline(&launch, e);
        }
    })
}
