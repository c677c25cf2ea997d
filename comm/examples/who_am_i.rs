//! Says which rank this process is, by whose word, and how long the ranks took to find each other:
//! `nd-run -n 4 -- who_am_i`, `mpirun -n 4 who_am_i`, `srun -n 4 who_am_i`.

use std::time::Instant;

use nd_comm::config::Config;
use nd_comm::launch::Launch;
use nd_comm::rendezvous::join;

fn main() {
    if let Err(e) = run() {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

fn run() -> nd_comm::Result<()> {
    let (config, launch) = (Config::from_env()?, Launch::from_env()?);
    if launch.rank == 0 {
        config.warnings.iter().for_each(|w| eprintln!("warning: {w}"));
    }
    let began = Instant::now();
    let card = format!("pid {}", std::process::id());
    let deadline = began + config.start_timeout();
    let joined = join(&launch, launch.rank, launch.world_size, card.as_bytes(), &config, deadline)?;
    let last = String::from_utf8_lossy(&joined.cards[launch.world_size - 1]).into_owned();
    println!(
        "rank {} of {} (here {:?} of {:?}), started by {}, met at {}, last rank is {last}, after {:.1} ms",
        launch.rank,
        launch.world_size,
        launch.local_rank,
        launch.local_world_size,
        launch.launcher,
        launch.rendezvous,
        began.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
