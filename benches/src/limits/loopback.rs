//! TCP over loopback between two threads that never sleep.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::threads::stay_on;

/// Short and many: of a busy machine some are undisturbed.
const PINGS: usize = 200;
const REPETITIONS: usize = 50;
/// Bytes that go each way in a repetition, and at most in a call.
const VOLUME: usize = 8 << 20;
const CHUNK: usize = 256 << 10;
/// No transfer takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Four bytes, one way, µs: half the best mean round trip.
pub fn one_way() -> Result<f64> {
    let (near, far) = pair()?;
    let mut ping = End { out: near.try_clone()?, into: near, buffer: vec![0; 4] };
    let mut pong = End { out: far.try_clone()?, into: far, buffer: vec![0; 4] };
    let least = both(
        move || {
            best(|| {
                (0..PINGS).try_for_each(|_| {
                    ping.transfer(4, 0)?;
                    ping.transfer(0, 4)
                })
            })
        },
        move || {
            (0..REPETITIONS * PINGS).try_for_each(|_| {
                pong.transfer(0, 4)?;
                pong.transfer(4, 0)
            })
        },
    )?;
    Ok(least * 1e6 / PINGS as f64 / 2.0)
}

/// Four bytes each way at once, µs: both sides send, then wait for the other's. The best mean of several repetitions.
pub fn exchange() -> Result<f64> {
    let (near, far) = pair()?;
    let mut near = End { out: near.try_clone()?, into: near, buffer: vec![0; 4] };
    let mut far = End { out: far.try_clone()?, into: far, buffer: vec![0; 4] };
    let least = both(
        move || best(|| (0..PINGS).try_for_each(|_| near.transfer(4, 4))),
        move || (0..REPETITIONS * PINGS).try_for_each(|_| far.transfer(4, 4)),
    )?;
    Ok(least * 1e6 / PINGS as f64)
}

/// A stream each way at the same time, on connections of their own: GB/s each way.
pub fn stream() -> Result<f64> {
    let ((a, b), (c, d)) = (pair()?, pair()?);
    let mut near = End { out: a, into: c, buffer: vec![0; CHUNK] };
    let mut far = End { out: d, into: b, buffer: vec![0; CHUNK] };
    let least = both(
        move || best(|| near.transfer(VOLUME, VOLUME)),
        move || (0..REPETITIONS).try_for_each(|_| far.transfer(VOLUME, VOLUME)),
    )?;
    Ok(VOLUME as f64 / least / 1e9)
}

/// Where one side writes and reads.
struct End {
    out: TcpStream,
    into: TcpStream,
    buffer: Vec<u8>,
}

impl End {
    /// Sends and receives so many bytes, whichever can go on.
    fn transfer(&mut self, mut send: usize, mut receive: usize) -> Result<()> {
        let began = Instant::now();
        let mut idle = 0u32;
        while send + receive > 0 {
            let mut moved = 0;
            if send > 0 {
                let length = send.min(self.buffer.len());
                let sent = would_block(self.out.write(&self.buffer[..length]))?;
                send -= sent;
                moved += sent;
            }
            if receive > 0 {
                let length = receive.min(self.buffer.len());
                match self.into.read(&mut self.buffer[..length]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    received => {
                        let received = would_block(received)?;
                        receive -= received;
                        moved += received;
                    }
                }
            }
            idle = if moved == 0 { idle + 1 } else { 0 };
            if idle >= 1 << 12 {
                idle = 0;
                std::thread::yield_now();
                if began.elapsed() > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
    }
}

fn would_block(moved: Result<usize>) -> Result<usize> {
    match moved {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        moved => moved,
    }
}

/// Seconds of the shortest of several repetitions.
fn best(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let began = Instant::now();
        work()?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Two threads on cores of their own; what the first one returns.
fn both(
    first: impl FnOnce() -> Result<f64> + Send,
    second: impl FnOnce() -> Result<()> + Send,
) -> Result<f64> {
    std::thread::scope(|scope| {
        let second = scope.spawn(move || {
            stay_on(1);
            second()
        });
        let first = scope.spawn(move || {
            stay_on(0);
            first()
        });
        let panicked = |_| Error::other("a measuring thread panicked");
        second.join().map_err(panicked)??;
        first.join().map_err(panicked)?
    })
}

/// The ends of a connection that never block and never wait for more to send.
fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((near, far))
}
