// SPDX-License-Identifier: MIT
//! One connection between two ranks: what reads it and what writes it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;

use super::frame::{Assembly, Head, MAX_PIECE, short_cause};
use super::liveness::Heard;
use super::meter::Metered;
use super::node::{Node, Peer, Spread};
use super::outgoing::{Job, News, Outgoing, WINDOW};
use super::suspicion::suspect;
use crate::failure::{FailureKind, PeerFailure};

/// After a failed write, how long a goodbye is looked for in what was received.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Pieces up to this size go out together with their head.
const SMALL_PIECE: usize = 16 * 1024;

type Reader = BufReader<Metered<OwnedReadHalf>>;
type Writer = Metered<OwnedWriteHalf>;

/// What a connection's writer is fed by.
pub(crate) struct Inbox {
    pub(crate) news: UnboundedReceiver<News>,
    pub(crate) jobs: UnboundedReceiver<Job>,
}

/// How a connection ended.
enum End {
    /// The peer said goodbye.
    Goodbye,
    Broken(String),
    /// This rank closed it.
    Here,
}

/// Waits for the frame that opens a connection, for as long as a proof may take.
pub(crate) async fn first_frame(mut stream: TcpStream, patience: Duration) -> Option<TcpStream> {
    let opened = tokio::time::timeout(patience, read_open(&mut stream)).await;
    matches!(opened, Ok(Ok(()))).then_some(stream)
}

async fn read_open(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut bytes = [0; Head::BYTES];
    stream.read_exact(&mut bytes).await?;
    match Head::decode(&bytes).map_err(io::Error::other)? {
        Head::Open => Ok(()),
        _ => Err(io::Error::other("it did not open the connection")),
    }
}

/// How opening a connection ended.
pub(crate) enum Opened {
    /// The peer has confirmed it.
    Taken,
    /// The peer did not take it, and never counted it.
    NotTaken(io::Error),
    /// This rank leaves, or the peer is gone.
    Ended,
}

/// Opens the connection that this rank made, and waits until the peer confirms
/// it. The peer may count it earlier: so a rank that leaves meanwhile says
/// goodbye, and nobody gives up before the connection breaks.
pub(crate) async fn open(stream: &mut TcpStream, inbox: &mut Inbox) -> Opened {
    if let Err(error) = stream.write_all(&Head::Open.encode()).await {
        return Opened::NotTaken(error);
    }
    let (mut reader, mut writer) = stream.split();
    tokio::select! {
        confirmed = read_open(&mut reader) => match confirmed {
            Ok(()) => Opened::Taken,
            Err(error) => Opened::NotTaken(error),
        },
        news = inbox.news.recv() => {
            if news == Some(News::Goodbye) {
                say_goodbye(&mut reader, &mut writer).await;
            }
            Opened::Ended
        }
    }
}

/// Says goodbye on a connection that carried nothing, and waits for its end.
async fn say_goodbye(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) {
    let said = async {
        writer.write_all(&Head::Goodbye.encode()).await?;
        writer.shutdown().await?;
        tokio::io::copy(reader, &mut tokio::io::sink()).await
    };
    if let Err(error) = said.await {
        tracing::debug!(%error, "saying goodbye");
    }
}

/// Confirms a connection that the peer opened, and runs it until it ends.
pub(crate) async fn run_accepted(
    node: Arc<Node>,
    rank: usize,
    peer: Arc<Peer>,
    mut stream: TcpStream,
    inbox: Inbox,
) {
    match stream.write_all(&Head::Open.encode()).await {
        Ok(()) => run(node, rank, peer, stream, inbox).await,
        Err(error) => ended(&node, rank, End::Broken(error.to_string())),
    }
}

/// Runs a connection until it ends.
pub(crate) async fn run(
    node: Arc<Node>,
    rank: usize,
    peer: Arc<Peer>,
    stream: TcpStream,
    inbox: Inbox,
) {
    let (reader, writer) = stream.into_split();
    let (reader, writer) = (
        Metered::new(reader, &node.meter),
        Metered::new(writer, &node.meter),
    );
    let end = {
        let mut reading = std::pin::pin!(read_frames(&node, rank, &peer, reader));
        let mut writing = std::pin::pin!(write_frames(&peer.outgoing, writer, inbox));
        // One that is taken for dead may not read what is written to it.
        let cut = async {
            peer.cut.notified().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let written = tokio::select! {
            end = &mut reading => Err(end),
            written = &mut writing => Ok(written),
            () = cut => Err(End::Here),
        };
        match written {
            Err(end) => end,
            Ok(Ok(Written::Farewell)) => reading.await,
            Ok(Ok(Written::Closed)) => End::Here,
            // A peer that left in good order may have said so before.
            Ok(Err(error)) => match tokio::time::timeout(LAST_WORDS, reading).await {
                Ok(End::Goodbye) => End::Goodbye,
                _ => End::Broken(format!("writing to it failed: {error}")),
            },
        }
    };
    ended(&node, rank, end);
}

fn ended(node: &Arc<Node>, rank: usize, end: End) {
    // While this rank leaves, the others close in their turn.
    if !node.leaving.load(Ordering::Acquire) {
        match end {
            End::Goodbye => node.gone(
                PeerFailure::new(rank, FailureKind::Left, "it said goodbye"),
                Spread::Nobody,
            ),
            End::Broken(cause) => {
                let node = Arc::clone(node);
                (node.runtime.clone()).spawn(async move { suspect(&node, rank, cause).await });
            }
            End::Here => {}
        }
    }
    node.connection_closed();
}

async fn read_frames(node: &Node, rank: usize, peer: &Peer, reader: Metered<OwnedReadHalf>) -> End {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut assembly = Assembly::default();
    loop {
        match read_frame(node, rank, peer, &mut reader, &mut assembly).await {
            Ok(true) => {}
            Ok(false) => return End::Goodbye,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return End::Broken("it was closed without a goodbye".into());
            }
            Err(error) => return End::Broken(error.to_string()),
        }
    }
}

/// Reads and obeys one frame; false after a goodbye.
async fn read_frame(
    node: &Node,
    rank: usize,
    peer: &Peer,
    reader: &mut Reader,
    assembly: &mut Assembly,
) -> io::Result<bool> {
    let mut bytes = [0; Head::BYTES];
    reader.read_exact(&mut bytes).await?;
    let head = Head::decode(&bytes).map_err(io::Error::other)?;
    peer.heard.now();
    match head {
        Head::First { piece, .. } | Head::Further { piece, .. } => {
            assembly.begin(head).map_err(io::Error::other)?;
            read_piece(reader, piece, &mut assembly.bytes, &peer.heard).await?;
            if let Some((tag, message)) = assembly.finish() {
                // What is held here, the sender counts as untaken, and it begins no
                // message while that is a whole window.
                if !peer.mailbox.deliver(tag, message, WINDOW) {
                    return Err(io::Error::other("it sent more than its window"));
                }
            }
        }
        Head::Credit { cost } => peer.outgoing.credit(cost),
        Head::Death { rank: dead, cause } => {
            let mut text = Vec::new();
            read_piece(reader, cause, &mut text, &peer.heard).await?;
            let dead = usize::try_from(dead).ok().filter(|dead| *dead < node.world);
            let dead = dead.ok_or_else(|| {
                io::Error::other("it reports the death of a rank that does not exist")
            })?;
            let cause = String::from_utf8_lossy(&text).into_owned();
            let is_out = |rank| {
                (node.failures.of(rank)).is_some_and(|failure| failure.kind == FailureKind::Died)
            };
            if dead != rank && is_out(rank) {
                tracing::debug!(
                    rank,
                    dead,
                    "a rank that is out itself accuses another: ignored"
                );
            } else {
                let failure = PeerFailure::new(dead, FailureKind::Died, cause);
                node.gone(failure, Spread::HeardFrom(rank));
            }
        }
        Head::Beat { answer: true } => peer.outgoing.beat(false),
        Head::Beat { answer: false } => {}
        Head::Goodbye => return Ok(false),
        Head::Open => return Err(io::Error::other("it opened the connection twice")),
    }
    Ok(true)
}

/// Appends `length` bytes.
async fn read_piece(
    reader: &mut Reader,
    length: usize,
    into: &mut Vec<u8>,
    heard: &Heard,
) -> io::Result<()> {
    into.reserve(length);
    let mut piece = reader.take(length as u64);
    while piece.limit() > 0 {
        if piece.read_buf(into).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        heard.now();
    }
    Ok(())
}

/// Why a writer stopped.
enum Written {
    /// It said goodbye.
    Farewell,
    /// The peer is gone, or this object is.
    Closed,
}

async fn write_frames(
    outgoing: &Outgoing,
    mut writer: Writer,
    mut inbox: Inbox,
) -> io::Result<Written> {
    let mut scratch = Vec::with_capacity(SMALL_PIECE + Head::BYTES);
    loop {
        let goodbye = tokio::select! {
            biased;
            news = inbox.news.recv() => match news {
                Some(news) => write_news(&mut writer, news, outgoing).await?,
                None => return Ok(Written::Closed),
            },
            job = inbox.jobs.recv() => match job {
                Some(job) => {
                    write_message(&mut writer, &mut inbox.news, &job, &mut scratch, outgoing).await?
                }
                None => return Ok(Written::Closed),
            },
        };
        if goodbye {
            // What was queued before goes out before.
            while let Ok(job) = inbox.jobs.try_recv() {
                write_message(&mut writer, &mut inbox.news, &job, &mut scratch, outgoing).await?;
            }
            writer.write_all(&Head::Goodbye.encode()).await?;
            writer.shutdown().await?;
            return Ok(Written::Farewell);
        }
    }
}

/// Writes one piece of news; true if it is the goodbye, which is left to the
/// caller.
async fn write_news(writer: &mut Writer, news: News, outgoing: &Outgoing) -> io::Result<bool> {
    match news {
        News::Credit(cost) => writer.write_all(&Head::Credit { cost }.encode()).await?,
        News::Death { rank, cause } => {
            let cause = short_cause(&cause);
            let head = Head::Death {
                rank: rank as u64,
                cause: cause.len(),
            };
            let frame = [&head.encode()[..], cause.as_bytes()].concat();
            writer.write_all(&frame).await?;
        }
        News::Beat { answer } => {
            writer.write_all(&Head::Beat { answer }.encode()).await?;
            outgoing.beat_written();
        }
        News::Goodbye => return Ok(true),
    }
    Ok(false)
}

/// Writes a message in pieces, news between them; true if a goodbye was among
/// the news.
async fn write_message(
    writer: &mut Writer,
    news: &mut UnboundedReceiver<News>,
    job: &Job,
    scratch: &mut Vec<u8>,
    outgoing: &Outgoing,
) -> io::Result<bool> {
    let mut goodbye = false;
    let tag = job.tag;
    let (first, rest) = job.data.split_at(job.data.len().min(MAX_PIECE));
    let total = job.data.len() as u64;
    let piece = first.len();
    write_piece(writer, Head::First { tag, total, piece }, first, scratch).await?;
    for piece in rest.chunks(MAX_PIECE) {
        while let Ok(news) = news.try_recv() {
            goodbye |= write_news(writer, news, outgoing).await?;
        }
        let head = Head::Further {
            tag,
            piece: piece.len(),
        };
        write_piece(writer, head, piece, scratch).await?;
    }
    outgoing.written(job.number);
    Ok(goodbye)
}

async fn write_piece(
    writer: &mut Writer,
    head: Head,
    piece: &[u8],
    scratch: &mut Vec<u8>,
) -> io::Result<()> {
    if piece.len() > SMALL_PIECE {
        writer.write_all(&head.encode()).await?;
        return writer.write_all(piece).await;
    }
    scratch.clear();
    scratch.extend(head.encode());
    scratch.extend(piece);
    writer.write_all(scratch).await
}
