//! What the model has to know of the machines: which resources a transfer uses, and how long the rest takes.

/// Number of a resource: a direction of a link, a core, whatever has a capacity that transfers share.
pub type Resource = usize;

/// A use of a resource: how much of its capacity each byte per µs takes.
pub type Use = (Resource, f64);

/// How a message travels. Rates are bytes per µs (1 GB/s is 1000).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// The most that one message gets with nobody else on the way.
    pub rate: f64,
    /// Bytes that each message costs the way besides its own.
    pub overhead: f64,
    /// µs from the last byte's leaving to the receiver's sight of it.
    pub latency_us: f64,
    /// µs that posting takes of the sender's time.
    pub send_us: f64,
    /// µs that taking it takes of the receiver's time.
    pub recv_us: f64,
    /// Whether the receiver fetches the data when it needs them, so that a message is there as soon as it is posted
    /// and the receiver's work pays for the way.
    pub pull: bool,
    /// Bytes that may be on the way or wait for the receiver.
    pub window: u64,
    /// Bytes after which the receiver can start to work on a longer message.
    pub chunk: u64,
}

/// What a receiver does to a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Work<'a> {
    /// Bytes of the result.
    pub bytes: u64,
    /// Operands; one: a copy.
    pub terms: usize,
    /// The ranks whose messages are among them.
    pub messages: &'a [u32],
}

/// The machines under a communicator.
pub trait Fabric {
    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// How a message of `bytes` goes from one rank to another; adds what its transfer uses to `uses`.
    fn route(&self, from: usize, to: usize, bytes: u64, uses: &mut Vec<Use>) -> Route;

    /// The most bytes per µs (of the result) at which `rank` does some work, infinite where it costs nothing; adds
    /// what it uses to `uses`.
    fn work(&self, rank: usize, work: &Work<'_>, uses: &mut Vec<Use>) -> f64;

    /// A resource's capacity.
    fn capacity(&self, resource: Resource) -> f64;

    /// What to call a resource.
    fn name(&self, resource: Resource) -> String;

    /// The least number of ranks by which all ranks can be rotated so that everything looks the same; the world size
    /// where there is no smaller one.
    fn period(&self) -> usize;

    /// The resource of the first [`Fabric::period`] ranks that a rotation maps this one to, and how many it maps there.
    fn folded(&self, resource: Resource) -> (Resource, usize);
}
