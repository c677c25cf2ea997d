use super::*;

fn from(pairs: &[(&str, &str)]) -> Result<Launch> {
    let environment: Environment = pairs.iter().copied().collect();
    Launch::from_environment(&environment.with_launcher_process(Some("hydra-7@9".into())))
}

fn error(pairs: &[(&str, &str)]) -> String {
    from(pairs).unwrap_err().to_string()
}

const TORCH: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "1234"),
];

fn torch(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    TORCH.iter().filter(|(n, _)| !changes.iter().any(|(c, _)| c == n)).chain(changes).copied().collect()
}

#[test]
fn torchrun() {
    let launch = from(TORCH).unwrap();
    assert_eq!((launch.rank, launch.world_size), (3, 8));
    assert_eq!((launch.local_rank, launch.local_world_size), (Some(1), Some(2)));
    assert_eq!(launch.rendezvous, Address::tcp("node1", 1234));
    assert_eq!(launch.launcher, Launcher::Torchrun);
    assert_eq!(from(&torch(&[("MASTER_PORT", "")])).unwrap().rendezvous, Address::tcp("node1", 29500));
    let agent = from(&torch(&[("TORCHELASTIC_USE_AGENT_STORE", "True")])).unwrap();
    assert_eq!(agent.rendezvous, Address::tcp("node1", 1235));
    assert_eq!(from(&torch(&[("MASTER_ADDR", "[::1]")])).unwrap().rendezvous.to_string(), "[::1]:1234");
}

#[test]
fn torchrun_gone_wrong() {
    assert!(
        error(&torch(&[("RANK", "8")]))
            .starts_with("RANK=8: not below WORLD_SIZE=8; ranks count from 0 to 7")
    );
    assert!(error(&torch(&[("RANK", "-1")])).starts_with("RANK=-1: not a number"));
    assert!(error(&torch(&[("WORLD_SIZE", "x")])).starts_with("WORLD_SIZE=x: not a number"));
    assert!(error(&torch(&[("WORLD_SIZE", "0")])).starts_with("WORLD_SIZE=0"));
    assert!(error(&torch(&[("WORLD_SIZE", "")])).contains("it is not set, although RANK=3 is"));
    assert!(error(&torch(&[("RANK", "")])).starts_with("RANK=: it is not set, although WORLD_SIZE=8 is"));
    assert!(error(&torch(&[("LOCAL_RANK", "2")])).starts_with("LOCAL_RANK=2: not below LOCAL_WORLD_SIZE=2"));
    assert!(error(&torch(&[("MASTER_ADDR", "")])).starts_with("MASTER_ADDR=: it is not set"));
    assert!(error(&torch(&[("MASTER_PORT", "70000")])).starts_with("MASTER_PORT=70000: not a port"));
    assert!(error(&torch(&[("LOCAL_WORLD_SIZE", "9")])).contains("more than WORLD_SIZE=8"));
    assert!(error(&[]).contains("no launcher's variables are set"));
}

/// As printed by `mpiexec -n 2 env`.
#[test]
fn open_mpi() {
    let five = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-vm-8162@1"),
        ("PMIX_RANK", "1"),
    ];
    let launch = from(&five).unwrap();
    assert_eq!((launch.rank, launch.launcher), (1, Launcher::OpenMpi));
    assert_eq!(launch.rendezvous, Address::Unix("nd-0-prterun-vm-8162@1".into()));
    let mut hosts = five;
    hosts[1].1 = "4";
    let e = error(&hosts);
    assert!(e.contains("2 of 4 ranks are on this host") && e.contains("mpirun -x MASTER_ADDR="), "{e}");
}

#[test]
fn mpich_and_intel_mpi() {
    let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(from(&mpich).unwrap().rendezvous, Address::Unix("nd-0-hydra-7@9".into()));
    let intel: Vec<_> = mpich.into_iter().chain([("I_MPI_HYDRA_UUID", "f91f-1")]).collect();
    assert_eq!(from(&intel).unwrap().rendezvous, Address::Unix("nd-0-f91f-1".into()));
    let given: Vec<_> = mpich.into_iter().chain([("MASTER_ADDR", "a")]).collect();
    assert_eq!(from(&given).unwrap().rendezvous, Address::tcp("a", 29500));
}

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "7"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "4,3"),
    ("SLURM_JOB_ID", "123456"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "node[003-004]"),
];

#[test]
fn slurm() {
    let launch = from(SLURM).unwrap();
    assert_eq!((launch.rank, launch.world_size, launch.local_world_size), (5, 7, Some(3)));
    assert_eq!(launch.rendezvous, Address::tcp("node003", 23_456));
    let one: Vec<_> = SLURM
        .iter()
        .filter(|(n, _)| !n.contains("TASKS_PER_NODE"))
        .chain(&[("SLURM_NTASKS_PER_NODE", "7")])
        .copied()
        .collect();
    assert_eq!(from(&one).unwrap().rendezvous, Address::Unix("nd-0-slurm-123456.0".into()));
    let pmix: Vec<_> = SLURM
        .iter()
        .chain(&[
            ("PMIX_RANK", "5"),
            ("PMIX_NAMESPACE", "slurm.pmix.1.0"),
            ("PMI_RANK", "5"),
            ("PMI_SIZE", "7"),
        ])
        .copied()
        .collect();
    assert_eq!(from(&pmix).unwrap().launcher, Launcher::Slurm);
}

/// As printed by `env` in the script of `sbatch -N 2 -n 4` (Slurm 22.05).
#[test]
fn the_script_of_a_slurm_job_is_no_rank() {
    let script = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_JOB_ID", "3"),
        ("SLURM_JOB_NODELIST", "node[0-1]"),
    ];
    let e = error(&script);
    assert!(e.starts_with("SLURM_STEP_ID=: it is not set, although SLURM_PROCID=0 is"), "{e}");
    assert!(e.contains("start ranks in it with srun"), "{e}");
    let step: Vec<_> = script.into_iter().chain([("SLURM_STEP_ID", "0")]).collect();
    assert_eq!(from(&step).unwrap().world_size, 4);
    // Another launcher inside the script counts.
    let launch = from(&script.into_iter().chain(TORCH.iter().copied()).collect::<Vec<_>>()).unwrap();
    assert_eq!((launch.launcher, launch.also.len()), (Launcher::Torchrun, 0));
}

#[test]
fn the_stronger_launcher_wins_and_says_so() {
    let both: Vec<_> = SLURM.iter().chain(TORCH).copied().collect();
    let launch = from(&both).unwrap();
    assert_eq!((launch.launcher, launch.rank), (Launcher::Torchrun, 3));
    assert_eq!(launch.also, vec![Launcher::Slurm]);
}

#[test]
fn kubernetes() {
    let job = [
        ("JOB_COMPLETION_INDEX", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "job-0.svc"),
        ("MASTER_PORT", "5"),
    ];
    let launch = from(&job).unwrap();
    assert_eq!((launch.rank, launch.launcher), (1, Launcher::Kubernetes));
    assert!(error(&job[..2]).starts_with("MASTER_ADDR="));
    let e = error(&job[..1]);
    assert!(e.starts_with("WORLD_SIZE=: it is not set, although JOB_COMPLETION_INDEX=1 is"), "{e}");
    assert!(e.contains("the Job's manifest"), "{e}");
}

#[test]
fn a_single_rank_needs_no_meeting_point() {
    assert_eq!(from(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().world_size, 1);
}

#[test]
fn a_stated_rendezvous_needs_no_master_addr() {
    let launch = from(&torch(&[("MASTER_ADDR", ""), ("ND_RENDEZVOUS", "node9:77")])).unwrap();
    assert_eq!(launch.rendezvous, Address::tcp("node9", 77));
}
