//! Whether a launcher has started this process as a rank.

use nd_comm::launch::Launch;

/// The rank that a launcher gave this process, if one started it.
///
/// # Errors
/// What is wrong with the launcher's variables: a rank without a size is a launcher's mistake, not a wish to start ranks here.
pub fn given() -> nd_comm::Result<Option<Launch>> {
    const RANKS: [&str; 5] = ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    match Launch::from_env() {
        Ok(launch) => Ok(Some(launch)),
        Err(e) if RANKS.iter().any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty())) => Err(e),
        Err(_) => Ok(None),
    }
}
