// SPDX-License-Identifier: MIT
//! How far the Ethernet transport is from plain TCP, on this machine and in the same run.
//!
//! `cargo run --release --example ethernet_speed` measures between two processes and between two
//! threads: a 64-byte write with a signal against a plain TCP echo, and a stream of 16 MiB writes
//! against a plain TCP stream.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;
use mscclpp_port::{
    Buffer, Connection, Context, Device, EndpointConfig, RegisteredMemory, TransportKind,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SMALL: u64 = 64;
const LARGE: u64 = 16 << 20;
const ECHOES: u64 = 5_000;
const WRITES: u64 = 50;
const ROUNDS: usize = 3;
/// Where the token lies: after the payload.
const TOKEN: u64 = LARGE;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    if let Some(address) = arguments.next() {
        return follow(TcpStream::connect(address)?);
    }
    println!("cores: {}", thread::available_parallelism()?);
    for processes in [true, false] {
        println!("two {}", if processes { "processes" } else { "threads" });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        if processes {
            let mut child = Command::new(std::env::current_exe()?)
                .arg(address.to_string())
                .spawn()?;
            let outcome = lead(listener.accept()?.0);
            if outcome.is_err() {
                child.kill()?;
            }
            child.wait()?;
            outcome?;
        } else {
            let follower = thread::spawn(move || follow(TcpStream::connect(address)?));
            lead(listener.accept()?.0)?;
            follower.join().expect("the follower panicked")?;
        }
    }
    Ok(())
}

/// One end of both connections under test: plain TCP, and ours.
struct End {
    plain: TcpStream,
    scratch: Vec<u8>,
    buffer: Buffer,
    local: RegisteredMemory,
    remote: RegisteredMemory,
    connection: Connection,
    seen: u64,
}

impl End {
    fn new(mut plain: TcpStream) -> Result<Self> {
        plain.set_nodelay(true)?;
        let context = Context::new(Ipv4Addr::LOCALHOST.into())?;
        let buffer = Buffer::new(Device::cpu(), LARGE + 8)?;
        let local = context.register_memory(&buffer, ..)?;
        let endpoint = context.create_endpoint(EndpointConfig::new(TransportKind::Ethernet))?;
        send(&mut plain, &endpoint.serialize()?)?;
        send(&mut plain, &local.serialize()?)?;
        let (theirs, memory) = (receive(&mut plain)?, receive(&mut plain)?);
        let remote = RegisteredMemory::deserialize(&context, &memory)?;
        let connection = context.connect(endpoint, &theirs, Deadline::default())?;
        connection.wait_connected(Deadline::default())?;
        // Touched once, so that no run pays for the pages.
        for page in (0..LARGE).step_by(4096) {
            buffer.write(page, &[1])?;
        }
        let scratch = vec![1; LARGE as usize];
        Ok(Self {
            plain,
            scratch,
            buffer,
            local,
            remote,
            connection,
            seen: 0,
        })
    }

    fn post(&self) -> Result<()> {
        self.connection
            .write(&self.remote, 0, &self.local, 0, SMALL)?;
        Ok(self.connection.signal(&self.remote, TOKEN)?)
    }

    fn wait(&mut self) -> Result<()> {
        self.seen += 1;
        let mut looks = 0u32;
        while self.buffer.load_u64(TOKEN)? < self.seen {
            looks += 1;
            if looks < 16 {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn echo(&mut self, first: bool) -> Result<f64> {
        let start = Instant::now();
        let bytes = &mut self.scratch[..SMALL as usize];
        for _ in 0..ECHOES {
            if first {
                self.plain.write_all(bytes)?;
            }
            self.plain.read_exact(bytes)?;
            if !first {
                self.plain.write_all(bytes)?;
            }
        }
        Ok(start.elapsed().as_secs_f64() / ECHOES as f64 / 2.0)
    }

    fn ping(&mut self, first: bool) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..ECHOES {
            if first {
                self.post()?;
            }
            self.wait()?;
            if !first {
                self.post()?;
            }
        }
        Ok(start.elapsed().as_secs_f64() / ECHOES as f64 / 2.0)
    }
}

fn lead(plain: TcpStream) -> Result<()> {
    let mut end = End::new(plain)?;
    for _ in 0..ROUNDS {
        let echo = end.echo(true)?;
        let ping = end.ping(true)?;
        let start = Instant::now();
        for _ in 0..WRITES {
            end.plain.write_all(&end.scratch)?;
        }
        end.plain.read_exact(&mut end.scratch[..1])?;
        let stream = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..WRITES {
            end.connection.write(&end.remote, 0, &end.local, 0, LARGE)?;
        }
        end.connection
            .flush(Deadline::after(Duration::from_secs(60)))?;
        let ours = start.elapsed().as_secs_f64();
        let bytes = (WRITES * LARGE) as f64 / 1e9;
        println!(
            "  64 B one way: plain {:6.2} us, write+signal {:6.2} us, ratio {:.2} | 16 MiB: plain \
             {:5.2} GB/s, ours {:5.2} GB/s, ratio {:.2}",
            echo * 1e6,
            ping * 1e6,
            ping / echo,
            bytes / stream,
            bytes / ours,
            stream / ours,
        );
    }
    Ok(())
}

fn follow(plain: TcpStream) -> Result<()> {
    let mut end = End::new(plain)?;
    for _ in 0..ROUNDS {
        end.echo(false)?;
        end.ping(false)?;
        for _ in 0..WRITES {
            end.plain.read_exact(&mut end.scratch)?;
        }
        end.plain.write_all(&[1])?;
    }
    // Until the other end has measured the rest.
    let mut rest = Vec::new();
    end.plain.read_to_end(&mut rest)?;
    Ok(())
}

fn send(stream: &mut TcpStream, record: &[u8]) -> Result<()> {
    stream.write_all(&(record.len() as u64).to_le_bytes())?;
    Ok(stream.write_all(record)?)
}

fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let mut record = vec![0; u64::from_le_bytes(len).min(4096) as usize];
    stream.read_exact(&mut record)?;
    Ok(record)
}
