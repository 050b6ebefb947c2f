// SPDX-License-Identifier: MIT
//! One connection between two ranks: a task that reads and one that writes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::frame::{Assembly, Head, MAX_MESSAGE, MAX_PIECE, short_cause};
use super::mailbox::cost;
use super::outgoing::{Job, Link, News, Outbox, WINDOW};
use super::peers::Peers;
use crate::failure::FailureKind;
use crate::socket;

/// How long a connector that has proven itself may take to open the connection.
const OPENING: Duration = Duration::from_secs(5);

/// Runs the connection that this rank made.
pub(super) async fn connected(peers: Arc<Peers>, peer: usize, mut stream: TcpStream) {
    let opened = async {
        socket::prepare(&stream)?;
        stream.write_all(&Head::Open.encode()).await
    };
    match opened.await {
        Ok(()) => run(peers, peer, stream, |link| matches!(link, Link::Connecting)).await,
        Err(error) => peers.not_connected(peer, error.to_string()),
    }
}

/// Runs the connection that the peer made, once it opens it.
pub(super) async fn accepted(peers: Arc<Peers>, peer: usize, attempt: u64, mut stream: TcpStream) {
    let mut head = [0; Head::BYTES];
    let opened = async {
        socket::prepare(&stream)?;
        stream.read_exact(&mut head).await.map(|_| ())
    };
    let opened = matches!(tokio::time::timeout(OPENING, opened).await, Ok(Ok(())));
    if opened && matches!(Head::decode(&head), Ok(Head::Open)) {
        let ours = |link: &Link| matches!(link, Link::Accepting(a) if *a == attempt);
        run(peers, peer, stream, ours).await;
    } else {
        peers.not_accepted(peer, attempt);
    }
}

/// Makes the connection the link to the peer, if it is still wanted, and serves it
/// to its end.
async fn run(peers: Arc<Peers>, peer: usize, stream: TcpStream, wanted: impl Fn(&Link) -> bool) {
    let (reading, writing) = stream.into_split();
    let (urgent, news) = unbounded_channel();
    let (messages, jobs) = unbounded_channel();
    let outgoing = &peers.peer(peer).outgoing;
    {
        let state = outgoing.lock();
        if !wanted(&state.link) {
            return;
        }
        outgoing.set(state, Link::Open(Outbox { urgent, messages }));
    }
    // Whoever saw a death before this link was open could not tell this peer.
    peers.tell_deaths_to(peer);
    let writer = tokio::spawn(write(Arc::clone(&peers), peer, writing, news, jobs));
    let end = read(&peers, peer, reading).await;
    match end {
        Ok(()) => peers.gone(peer, FailureKind::Left, "it said goodbye"),
        Err(error) => peers.gone(peer, FailureKind::Died, &describe(&error)),
    }
    // The closed link has dropped the outbox, so the writer ends too.
    let _ = writer.await;
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "its connection was closed without a goodbye".into(),
        io::ErrorKind::ConnectionReset => "its connection was reset".into(),
        io::ErrorKind::TimedOut => "it or the network to it does not answer".into(),
        _ => format!("its connection broke: {error}"),
    }
}

/// Reads until the peer's goodbye.
async fn read(peers: &Peers, peer: usize, stream: OwnedReadHalf) -> io::Result<()> {
    // A peer may leave this much untaken, and begin one more message.
    let limit = WINDOW + MAX_MESSAGE + 2 * cost(0);
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut stream = BufReader::with_capacity(64 << 10, stream);
    let mut assembly = Assembly::default();
    let mut raw = [0; Head::BYTES];
    loop {
        stream.read_exact(&mut raw).await?;
        let head = Head::decode(&raw).map_err(|e| broken(&e.to_string()))?;
        match head {
            Head::First { piece, .. } | Head::Further { piece, .. } => {
                assembly.begin(head).map_err(|e| broken(&e.to_string()))?;
                let start = assembly.bytes.len();
                assembly.bytes.resize(start + piece, 0);
                stream.read_exact(&mut assembly.bytes[start..]).await?;
                if let Some((tag, message)) = assembly.finish()
                    && !peers.peer(peer).mailbox.deliver(tag, message, limit)
                {
                    return Err(broken("it sent more than it may leave untaken"));
                }
            }
            Head::Credit { cost } => peers.peer(peer).outgoing.credit(cost),
            Head::Death { rank, cause } => {
                let mut text = vec![0; cause];
                stream.read_exact(&mut text).await?;
                let text = String::from_utf8_lossy(&text);
                peers.told_of_death(peer, rank, &text);
            }
            Head::Goodbye => return Ok(()),
            Head::Open => return Err(broken("it opened the connection twice")),
        }
    }
}

/// Writes what comes through the outbox until that is dropped or the goodbye is
/// written. A broken connection is the reader's to notice.
async fn write(
    peers: Arc<Peers>,
    peer: usize,
    mut stream: OwnedWriteHalf,
    mut news: UnboundedReceiver<News>,
    mut jobs: UnboundedReceiver<Job>,
) {
    loop {
        let written = tokio::select! {
            biased;
            Some(item) = news.recv() => match write_news(&mut stream, &item).await {
                Ok(()) if item == News::Goodbye => break,
                written => written,
            },
            Some(job) = jobs.recv() => {
                let number = job.number;
                match write_message(&mut stream, &mut news, job).await {
                    Ok(()) => {
                        peers.peer(peer).outgoing.written(number);
                        Ok(())
                    }
                    broken => broken,
                }
            }
            else => break,
        };
        if let Err(error) = written {
            tracing::debug!(rank = peers.rank, peer, %error, "writing to a peer failed");
            break;
        }
    }
    if let Err(error) = stream.shutdown().await {
        tracing::debug!(rank = peers.rank, peer, %error, "closing a connection");
    }
}

async fn write_news(stream: &mut OwnedWriteHalf, item: &News) -> io::Result<()> {
    match item {
        News::Credit(cost) => stream.write_all(&Head::Credit { cost: *cost }.encode()).await,
        News::Goodbye => stream.write_all(&Head::Goodbye.encode()).await,
        News::Death { rank, cause } => {
            let cause = short_cause(cause).as_bytes();
            let head = Head::Death {
                rank: *rank as u64,
                cause: cause.len(),
            };
            let mut frame = head.encode().to_vec();
            frame.extend_from_slice(cause);
            stream.write_all(&frame).await
        }
    }
}

/// Writes a message in pieces; news goes out between them.
async fn write_message(
    stream: &mut OwnedWriteHalf,
    news: &mut UnboundedReceiver<News>,
    job: Job,
) -> io::Result<()> {
    let Job { tag, data, .. } = job;
    let total = data.len() as u64;
    let mut rest = &data[..];
    let mut first = true;
    while first || !rest.is_empty() {
        while let Ok(item) = news.try_recv() {
            write_news(stream, &item).await?;
        }
        let (piece, after) = rest.split_at(rest.len().min(MAX_PIECE));
        let head = if first {
            let piece = piece.len();
            Head::First { tag, total, piece }
        } else {
            let piece = piece.len();
            Head::Further { tag, piece }
        };
        // One packet for a small message.
        if piece.len() <= 4096 {
            let mut frame = head.encode().to_vec();
            frame.extend_from_slice(piece);
            stream.write_all(&frame).await?;
        } else {
            stream.write_all(&head.encode()).await?;
            stream.write_all(piece).await?;
        }
        rest = after;
        first = false;
    }
    Ok(())
}
