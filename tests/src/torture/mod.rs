//! `torture`: worlds of real processes in which a rank dies, stops, aborts, leaves or goes astray at a random moment, or a
//! cable is pulled. Every survivor must learn of it and name the right rank, every result before that must be right, and
//! nothing may be left behind.
//!
//! | file | what |
//! |---|---|
//! | `draw` | numbers from a seed — *pure* |
//! | [`case`] | what one world goes through — *pure* |
//! | [`calls`] | the calls of a world, and what must come of them |
//! | `rank` | what a rank does, in a process of its own |
//! | `watch` | one case: start, strike, look |
//! | `table` | what came of all of them |

pub mod calls;
pub mod case;
mod draw;
mod rank;
mod table;
mod watch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::hosts::{Hosts, Network};
use crate::{Need, skip};
use case::{Case, Fault, Joined};
use draw::Draw;
use table::Table;
use watch::Place;

/// Strikes ranks of real worlds at random moments, and looks at what the others say, compute and leave behind.
#[derive(Debug, Parser)]
#[command(name = "torture", max_term_width = 110)]
struct Arguments {
    /// What all cases are drawn from; the same number gives the same cases [default: a random one, which is printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// How many worlds lose a rank to SIGKILL, shared out among the links
    #[arg(long, value_name = "N", default_value_t = 500)]
    kills: usize,
    /// How many worlds each other fault strikes, for each kind of link
    #[arg(long, value_name = "N", default_value_t = 8)]
    others: usize,
    /// Begin no more cases after so many minutes
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    minutes: f64,
    /// Only this: kill, stop, abort, exit, leave, mismatch, deaf or cable
    #[arg(long, value_name = "FAULT")]
    fault: Option<Fault>,
    /// Only over this: shm, tcp or mix (two hosts)
    #[arg(long, value_name = "LINKS")]
    over: Option<Joined>,
    /// The one case of this seed, as it is printed when a case fails; with --fault and --over
    #[arg(long, value_name = "SEED", requires = "fault", requires = "over")]
    case: Option<u64>,
    /// How often to play that case
    #[arg(long, value_name = "N", default_value_t = 1, requires = "case")]
    times: usize,
    /// Where the files of cases that fail are kept [default: the system's temporary folder]
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// The whole command: one rank of a case, or what watches them all.
pub fn main() -> ExitCode {
    if let Ok(role) = std::env::var(rank::ROLE) {
        return rank::main(&role);
    }
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<bool> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let hosts = match Hosts::possible() {
        true => Some(Hosts::open(2, Network::default())?),
        false => None,
    };
    let cases = match arguments.case {
        Some(case) => {
            let (fault, joined) = arguments.fault.zip(arguments.over).expect("required with --case");
            vec![Case::draw(case, fault, joined); arguments.times]
        }
        None => cases(arguments, seed, hosts.is_some()),
    };
    let pretended = hosts.is_none() && cases.iter().any(|case| case.joined == Joined::Mix);
    println!("# SEED={seed} repeats this run: {} worlds of 2 to 8 ranks", cases.len());
    if pretended {
        println!("# without root the two hosts of mix are two names for this one, joined by loopback");
    }
    let keep = arguments.keep.clone().unwrap_or_else(std::env::temp_dir);
    let folder = keep.join(format!("nd-torture-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let place = Place { program: std::env::current_exe()?, folder: folder.clone(), hosts };
    let mut all = All { table: Table::default(), failed: 0 };
    let until = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut tried = 0;
    for case in cases.iter().take_while(|_| Instant::now() < until) {
        all.play(&place, case, tried)?;
        tried += 1;
    }
    let left = left_behind(&place);
    drop(place);
    print!("{}", all.table);
    if tried < cases.len() {
        println!("# the time was over after {tried} of {} worlds; raise --minutes", cases.len());
    }
    left.iter().for_each(|what| println!("left behind: {what}"));
    if all.failed == 0 {
        let _ = fs::remove_dir(&folder);
    }
    println!("# {tried} worlds, {} not as they must be", all.failed);
    Ok(all.failed == 0 && left.is_empty())
}

/// All that was asked for, faults and links taking turns, so that a run that ends early has tried some of each.
fn cases(arguments: &Arguments, seed: u64, hosts: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for fault in Fault::ALL.into_iter().filter(|fault| arguments.fault.is_none_or(|f| f == *fault)) {
        if fault == Fault::Cable && !hosts {
            skip("torture cable", Need::Root);
            continue;
        }
        let links = Joined::ALL.into_iter().filter(|joined| {
            let there = fault != Fault::Cable || *joined == Joined::Mix;
            there && arguments.over.is_none_or(|over| over == *joined)
        });
        let links: Vec<_> = links.collect();
        let count = match fault {
            Fault::Kill => arguments.kills,
            _ => arguments.others * links.len(),
        };
        for (i, joined) in (0..count).zip(links.iter().cycle()) {
            let drawn = Draw::new(seed, &[fault as u64, *joined as u64, i as u64]).number();
            let share = (i as f64 + 0.5) / count as f64;
            cases.push((share, Case::draw(drawn, fault, *joined)));
        }
    }
    cases.sort_by(|a, b| a.0.total_cmp(&b.0));
    cases.into_iter().map(|(_, case)| case).collect()
}

struct All {
    table: Table,
    failed: usize,
}

impl All {
    fn play(&mut self, place: &Place, case: &Case, number: usize) -> io::Result<()> {
        let folder = place.folder.join(format!("case{number}"));
        let outcome = place.play(case, &folder)?;
        if outcome.problems.is_empty() {
            fs::remove_dir_all(&folder)?;
        } else {
            self.failed += 1;
            println!("FAILED {case}");
            outcome.problems.iter().for_each(|problem| println!("  {problem}"));
            let (fault, over) = (case.fault.name(), case.joined.name());
            println!("  again: torture --case {} --fault {fault} --over {over}", case.seed);
            println!("  its files: {}", folder.display());
        }
        self.table.add(case, &outcome);
        Ok(())
    }
}

/// What is there that was not there before: processes of this run, files in the hosts' shared memory.
fn left_behind(place: &Place) -> Vec<String> {
    let mut left = Vec::new();
    let ours = format!(" {}", std::process::id());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let role = environment.split(|byte| *byte == 0).find(|v| v.starts_with(rank::ROLE.as_bytes()));
        if role.is_some_and(|role| role.ends_with(ours.as_bytes())) {
            left.push(format!("process {}", process.file_name().to_string_lossy()));
        }
    }
    let mut roots = vec![PathBuf::from("/dev/shm")];
    if let Some(hosts) = &place.hosts {
        roots.extend(
            hosts.holders().iter().take(2).map(|pid| Path::new("/proc").join(format!("{pid}/root/dev/shm"))),
        );
    }
    for root in roots {
        let files = fs::read_dir(&root).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        left.extend(
            names.filter(|name| name.starts_with("nd")).map(|name| format!("{}/{name}", root.display())),
        );
    }
    left
}
