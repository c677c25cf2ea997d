//! Who may talk to us: a greeting that tells versions apart, then a Noise handshake over the secret of the job.
//!
//! The greeting is plain text of a fixed length, so that a different version or a stranger is told from its first
//! bytes. The handshake (`Noise_NNpsk0_25519_AESGCM_SHA256`) proves to each side that the other knows the secret
//! now: recorded bytes prove nothing. Afterwards the [`Session`] is encrypted; [`Session::into_inner`] gives the
//! stream back for plain bytes.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::{Error, PROTOCOL, Result};

/// Bytes of a [`Secret`].
pub const SECRET_LEN: usize = 32;

/// What the ranks of a job know and nobody else does.
#[derive(Clone)]
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// A new one, from a cryptographic generator that the system seeds.
    pub fn random() -> Secret {
        Secret(rand::random())
    }

    /// This one.
    pub fn from_bytes(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(bytes)
    }

    /// From 64 hexadecimal digits, as [`Secret::reveal_hex`] prints them.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let digits = text.trim().as_bytes();
        if digits.len() != 2 * SECRET_LEN {
            return None;
        }
        let mut secret = Secret([0; SECRET_LEN]);
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16);
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Some(secret)
    }

    /// As 64 hexadecimal digits. Whoever sees them may join the job.
    pub fn reveal_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The bytes themselves.
    pub fn as_bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

impl PartialEq for Secret {
    /// Takes as long for the first differing byte as for the last.
    fn eq(&self, other: &Secret) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |d, (a, b)| d | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        for byte in &mut self.0 {
            *std::hint::black_box(byte) = 0;
        }
        compiler_fence(Ordering::SeqCst);
        std::hint::black_box(&self.0);
    }
}

/// Greets and proves the secret, as the side that opened the connection. `context` is what both sides must agree
/// on: another purpose, another answer. The stream blocks; its own time-out, if it has one, becomes
/// [`Error::Timeout`].
pub fn initiate<S: Read + Write>(mut stream: S, secret: &Secret, context: &[u8]) -> Result<Session<S>> {
    let mut io = Talk::new(&mut stream);
    io.write(&Hello::ours(OPENS).encode())?;
    io.read_hello(ANSWERS)?;

    let mut noise = noise(secret, context, |b| b.build_initiator())?;
    let mut message = [0; HANDSHAKE_MAX];
    let n = noise.write_message(&[], &mut message).map_err(broken)?;
    io.write_framed(&message[..n])?;
    let answer = io.read_framed(HANDSHAKE_MAX)?;
    if answer.is_empty() {
        return Err(refused(STRANGER_HERE));
    }
    noise.read_message(&answer, &mut message).map_err(|_| refused(STRANGER))?;

    let keys = Keys::of(&mut noise);
    let mut noise = noise.into_transport_mode().map_err(broken)?;
    let n = noise.write_message(&[], &mut message).map_err(broken)?;
    io.write_framed(&message[..n])?;
    Ok(Session { stream, noise, keys })
}

/// Greets and asks for proof of the secret, as the side that was connected to; see [`initiate`].
pub fn respond<S: Read + Write>(mut stream: S, secret: &Secret, context: &[u8]) -> Result<Session<S>> {
    let mut io = Talk::new(&mut stream);
    let hello = io.read_hello(OPENS);
    // Another version is told ours, so that both sides can name both; a stranger is told nothing.
    if hello.is_ok() || matches!(&hello, Err(Error::Refused { why, .. }) if why.starts_with(SPEAKS)) {
        let answered = io.write(&Hello::ours(ANSWERS).encode());
        hello?;
        answered?;
    } else {
        return Err(hello.err().unwrap_or_else(|| refused(STRANGER)));
    }

    let mut noise = noise(secret, context, |b| b.build_responder())?;
    let mut message = [0; HANDSHAKE_MAX];
    let first = io.read_framed(HANDSHAKE_MAX)?;
    if noise.read_message(&first, &mut message).is_err() {
        let _ = io.write_framed(&[]);
        return Err(refused(STRANGER));
    }
    let n = noise.write_message(&[], &mut message).map_err(broken)?;
    io.write_framed(&message[..n])?;

    // The first message may be a recording; this one cannot be.
    let keys = Keys::of(&mut noise);
    let mut noise = noise.into_transport_mode().map_err(broken)?;
    let proof = io.read_framed(HANDSHAKE_MAX)?;
    noise.read_message(&proof, &mut message).map_err(|_| refused(STRANGER))?;
    Ok(Session { stream, noise, keys })
}

/// Whether `first`, the first bytes of somebody who has connected, are a whole greeting.
///
/// # Errors
/// [`Error::Refused`] if they are no beginning of one.
pub fn greets(first: &[u8]) -> Result<bool> {
    belongs(first, OPENS).map(|()| first.len() >= HELLO_LEN)
}

/// An authenticated, encrypted conversation.
pub struct Session<S> {
    stream: S,
    noise: snow::TransportState,
    keys: Keys,
}

/// What other keys are made of: those of the two directions, and the hash of all that was said to agree on them.
struct Keys {
    from_initiator: Secret,
    from_responder: Secret,
    hash: [u8; 32],
}

impl Keys {
    /// Of a handshake whose messages have all been exchanged.
    fn of(noise: &mut snow::HandshakeState) -> Keys {
        let (from_initiator, from_responder) = noise.dangerously_get_raw_split();
        let mut hash = [0; 32];
        hash.copy_from_slice(noise.get_handshake_hash());
        Keys {
            from_initiator: Secret::from_bytes(from_initiator),
            from_responder: Secret::from_bytes(from_responder),
            hash,
        }
    }
}

impl<S: Read + Write> Session<S> {
    /// Sends one message of any length.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut plain = Vec::with_capacity(PLAIN_MAX.min(8 + message.len()));
        plain.extend_from_slice(&(message.len() as u64).to_le_bytes());
        let (head, mut rest) = message.split_at(message.len().min(PLAIN_MAX - 8));
        plain.extend_from_slice(head);
        let mut sealed = vec![0; 2 + plain.len() + TAG];
        loop {
            let n = self.noise.write_message(&plain, &mut sealed[2..]).map_err(broken)?;
            sealed[..2].copy_from_slice(&(n as u16).to_le_bytes());
            Talk::new(&mut self.stream).write(&sealed[..2 + n])?;
            if rest.is_empty() {
                return Ok(());
            }
            let (head, tail) = rest.split_at(rest.len().min(PLAIN_MAX));
            plain.clear();
            plain.extend_from_slice(head);
            rest = tail;
        }
    }

    /// Receives one message, of at most `max` bytes: a longer one is an error before memory is taken for it.
    pub fn receive(&mut self, max: usize) -> Result<Vec<u8>> {
        let mut plain = vec![0; PLAIN_MAX];
        let n = self.open(&mut plain)?;
        let Some((head, first)) = plain[..n].split_first_chunk() else {
            return Err(refused("broke off a message in its head"));
        };
        let len = u64::from_le_bytes(*head);
        if len > max as u64 {
            return Err(refused(format!("sent a message of {len} bytes, the limit is {max}")));
        }
        let len = len as usize;
        // Whoever announces much has to send it before it costs memory.
        let mut message = Vec::with_capacity(len.min(PLAIN_MAX));
        message.extend_from_slice(first);
        while message.len() < len {
            let n = self.open(&mut plain)?;
            if n == 0 {
                return Err(refused("sent an empty piece of a message"));
            }
            message.extend_from_slice(&plain[..n.min(len + 1 - message.len())]);
        }
        if message.len() > len {
            return Err(refused(format!("sent more than the {len} bytes it announced")));
        }
        Ok(message)
    }

    fn open(&mut self, plain: &mut [u8]) -> Result<usize> {
        let sealed = Talk::new(&mut self.stream).read_framed(NOISE_MAX)?;
        self.noise
            .read_message(&sealed, plain)
            .map_err(|_| refused("sent bytes that were changed on the way"))
    }

    /// Two secrets that only the two ends of this session know, for what `label` names: for what the initiator sends,
    /// and for what the responder does. They are bound to this handshake (by its hash), and say nothing of the keys
    /// that the session itself uses.
    pub fn directions(&self, label: &[u8]) -> [Secret; 2] {
        let label = [label, &self.keys.hash].concat();
        [&self.keys.from_initiator, &self.keys.from_responder].map(|key| key.derive(&label))
    }

    /// The stream, for plain bytes from here on. Nothing was read beyond what was received.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// The same session on the same stream, held in another way.
    pub fn map<T>(self, hold: impl FnOnce(S) -> T) -> Session<T> {
        Session { stream: hold(self.stream), noise: self.noise, keys: self.keys }
    }

    /// The stream, to change how it waits.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The stream, to set its time-outs.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(…)")
    }
}

/// The greeting: what kind of peer, which version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hello {
    magic: [u8; MAGIC_LEN],
    protocol: u32,
    release: String,
}

impl Hello {
    fn ours(magic: &[u8; MAGIC_LEN]) -> Hello {
        Hello { magic: *magic, protocol: PROTOCOL, release: env!("CARGO_PKG_VERSION").into() }
    }

    fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..MAGIC_LEN].copy_from_slice(&self.magic);
        bytes[MAGIC_LEN..MAGIC_LEN + 4].copy_from_slice(&self.protocol.to_le_bytes());
        for (to, from) in bytes[MAGIC_LEN + 4..].iter_mut().zip(self.release.bytes()) {
            *to = from;
        }
        bytes
    }

    /// Of bytes whose magic was checked.
    fn decode(bytes: &[u8; HELLO_LEN]) -> Hello {
        let (magic, rest) = bytes.split_first_chunk().expect("longer than its magic");
        let (protocol, release) = rest.split_first_chunk().expect("longer than its version");
        let release = release.iter().take_while(|b| b.is_ascii_graphic()).map(|&b| char::from(b)).collect();
        Hello { magic: *magic, protocol: u32::from_le_bytes(*protocol), release }
    }

    /// Why a peer that greets so is refused, seen from `ours`.
    fn problem(&self, ours: &Hello) -> Option<String> {
        (self.protocol != ours.protocol).then(|| {
            format!(
                "{SPEAKS} {} (nd {}), this is protocol {} (nd {}); install the same version everywhere",
                self.protocol, self.release, ours.protocol, ours.release
            )
        })
    }
}

/// A stream, with its errors in our words.
struct Talk<'a, S> {
    stream: &'a mut S,
    since: Instant,
}

impl<'a, S: Read + Write> Talk<'a, S> {
    fn new(stream: &'a mut S) -> Talk<'a, S> {
        Talk { stream, since: Instant::now() }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let done = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
        done.map_err(|e| failed(e, self.since.elapsed()))
    }

    fn write_framed(&mut self, bytes: &[u8]) -> Result<()> {
        let mut framed = Vec::with_capacity(2 + bytes.len());
        framed.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        framed.extend_from_slice(bytes);
        self.write(&framed)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.stream.read_exact(bytes).map_err(|e| failed(e, self.since.elapsed()))
    }

    fn read_framed(&mut self, max: usize) -> Result<Vec<u8>> {
        let mut len = [0; 2];
        self.read(&mut len)?;
        let len = usize::from(u16::from_le_bytes(len));
        if len > max {
            return Err(refused(format!("sent {len} bytes where at most {max} belong")));
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a greeting, and gives up at the first byte that does not belong there.
    fn read_hello(&mut self, magic: &[u8; MAGIC_LEN]) -> Result<()> {
        let mut bytes = [0; HELLO_LEN];
        let mut have = 0;
        while have < HELLO_LEN {
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) if have == 0 => return Err(refused(format!("{CLOSED} without a word"))),
                Ok(0) => return Err(refused(format!("{CLOSED} in its greeting"))),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e, self.since.elapsed())),
            }
            belongs(&bytes[..have], magic)?;
        }
        match Hello::decode(&bytes).problem(&Hello::ours(magic)) {
            Some(problem) => Err(refused(problem)),
            None => Ok(()),
        }
    }
}

/// Refuses what does not begin like a greeting.
fn belongs(bytes: &[u8], magic: &[u8; MAGIC_LEN]) -> Result<()> {
    let first = &bytes[..bytes.len().min(MAGIC_LEN)];
    if magic.starts_with(first) {
        return Ok(());
    }
    let hex: Vec<String> = first.iter().map(|b| format!("{b:02x}")).collect();
    Err(refused(format!("not an nd peer: first bytes {}", hex.join(" "))))
}

fn noise(
    secret: &Secret,
    context: &[u8],
    build: impl FnOnce(snow::Builder<'_>) -> Result<snow::HandshakeState, snow::Error>,
) -> Result<snow::HandshakeState> {
    let pattern = NOISE.parse().map_err(broken)?;
    let mut prologue = Hello::ours(OPENS).encode().to_vec();
    prologue.extend_from_slice(context);
    let builder = snow::Builder::new(pattern).prologue(&prologue).map_err(broken)?;
    build(builder.psk(0, secret.as_bytes()).map_err(broken)?).map_err(broken)
}

fn refused(why: impl Into<String>) -> Error {
    Error::Refused { who: "the other side".into(), why: why.into() }
}

fn broken(e: snow::Error) -> Error {
    Error::system("encryption", io::Error::other(e.to_string()))
}

fn failed(e: io::Error, after: Duration) -> Error {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Error::Timeout { what: "a word from the other side of a handshake or session".into(), after }
        }
        ErrorKind::UnexpectedEof => refused(CLOSED),
        _ => Error::system("talking to the other side", e),
    }
}

const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MAGIC_LEN: usize = 8;
const OPENS: &[u8; MAGIC_LEN] = b"nd-open\n";
const ANSWERS: &[u8; MAGIC_LEN] = b"nd-answ\n";
/// The greeting: magic, version of the protocol, release padded with zeros.
pub const HELLO_LEN: usize = 32;
/// The longest message of Noise (specification, §3).
const NOISE_MAX: usize = 65_535;
const TAG: usize = 16;
const PLAIN_MAX: usize = NOISE_MAX - TAG;
/// Handshake messages are a key of 32 bytes and a tag.
const HANDSHAKE_MAX: usize = 128;
/// How the reason of a refusal begins when the other side just hung up.
pub(crate) const CLOSED: &str = "closed the connection";
const SPEAKS: &str = "speaks protocol";
const STRANGER: &str = "does not know the secret of this job (ND_SECRET), or belongs to another (ND_JOB)";
const STRANGER_HERE: &str =
    "says that this side does not know the secret of this job (ND_SECRET), or belongs to another (ND_JOB)";

#[cfg(test)]
mod tests;
