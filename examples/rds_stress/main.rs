//! `rds-stress` of rds-tools, with its options and protocol: two sides exchange requests and
//! answers, and each checks the order and content of the messages.
//!
//! ```sh
//! cargo run -p examples --bin rds-stress &
//! cargo run -p examples --bin rds-stress -- -s 10.9.0.2 -q 4096 -t 2 -d 2 -T 10 -v
//! ```
//!
//! The other side is this program or the original. Tasks are threads. Unsupported: options without
//! support in current kernels (`--reset`, `--async`), and the original's `--show-perfdata` and
//! `--rdma-key-o-meter`.
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, ToSocketAddrs},
    path::PathBuf,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use examples::{
    rds_stress::{
        options::{Mode, Options, START_LEN, wire_len},
        soak::Soak,
        stats::{Line, Stats, TITLES},
        task::{GRACE, RUNNING, STOPPED, STOPPING, Shared, Task},
    },
    rds_tool::info_socket::InfoSocket,
};

/// Exchange requests and answers between two hosts over RDS
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "these are its options")]
struct Arguments {
    /// Active side: connect to this host and choose the options of both sides; otherwise wait for a
    /// connection
    #[arg(short = 's', long = "send-addr", value_name = "ADDRESS", value_parser = address)]
    send: Option<Ipv4Addr>,
    /// Local address
    #[arg(short = 'r', long = "recv-addr", value_name = "ADDRESS", value_parser = address)]
    receive: Option<Ipv4Addr>,
    /// Port of the control connection; tasks have the following ports
    #[arg(short = 'p', long, default_value_t = 4000)]
    port: u16,
    /// Size of answers
    #[arg(short = 'a', long = "ack-bytes", value_name = "BYTES", default_value = "63", value_parser = number)]
    ack: u32,
    /// Size of requests
    #[arg(short = 'q', long = "req-bytes", value_name = "BYTES", default_value = "1024", value_parser = number)]
    request: u32,
    /// Send requests in one direction only
    #[arg(short = 'o')]
    simplex: bool,
    /// Maximum number of requests in flight to each task
    #[arg(short = 'd', long, default_value = "1", value_parser = number)]
    depth: u32,
    /// Tasks per side
    #[arg(short = 't', long, default_value_t = 1)]
    tasks: u16,
    /// Run time in seconds; 0 for no limit
    #[arg(short = 'T', long = "time", value_name = "SECONDS", default_value = "0", value_parser = number)]
    seconds: u32,
    /// Type of service: each has connections of its own
    #[arg(short = 'Q', long, default_value = "0", value_parser = byte)]
    tos: u8,
    /// Size of memory read or written before an answer
    #[arg(short = 'D', long = "rdma-bytes", value_name = "BYTES", default_value = "0", value_parser = number)]
    rdma: u32,
    /// Pieces of local memory for one remote piece
    #[arg(short = 'I', value_name = "COUNT", default_value = "1", value_parser = number)]
    vector: u32,
    /// 0: alternate reads and writes, 1: reads, 2: writes
    #[arg(short = 'M', value_name = "MODE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    mode: u8,
    /// Measure processor load with soaker threads of low priority
    #[arg(short = 'c', long)]
    report_cpu: bool,
    /// Print the summary only
    #[arg(short = 'z', long)]
    report_summary: bool,
    /// Run the printing thread with real-time priority (`SCHED_RR`)
    #[arg(short = 'R', long)]
    rtprio: bool,
    /// Compare all received data with the expected data
    #[arg(short = 'v', long)]
    verify: bool,
    /// Trace operations
    #[arg(short = 'V', long)]
    trace: bool,
    /// Use memory exports for one operation
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=1))]
    rdma_use_once: u8,
    /// Put memory keys into requests
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=1))]
    rdma_use_get_mr: u8,
    /// Fence answers after reads
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=1))]
    rdma_use_fence: u8,
    /// Reuse memory keys
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=1))]
    rdma_cache_mrs: u8,
    /// Offset of memory in a page
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = number)]
    rdma_alignment: u32,
    /// Print the options
    #[arg(long)]
    show_params: bool,
    /// Maximum number of connection attempts, one per second
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    connect_retries: u32,
    /// Wait for congestion updates
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=1))]
    use_cong_monitor: u8,
    /// Print round trips longer than this
    #[arg(long, value_name = "MICROSECONDS", default_value_t = u64::MAX)]
    show_outliers: u64,
    /// Print a histogram of round trips
    #[arg(long)]
    show_histogram: bool,
    /// Socket for `rds-info`
    #[arg(long, value_name = "SOCKET")]
    info_socket: Option<PathBuf>,
}

/// Parses an address, or resolves a name.
fn address(text: &str) -> Result<Ipv4Addr> {
    let mut all = (text, 0).to_socket_addrs()?;
    all.find_map(|addr| match addr.ip() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    })
    .context("there is no IPv4 address of that name")
}

/// Parses `1024`, `0x400` or `1K`, or a number with `M` or `G`.
fn number(text: &str) -> Result<u32> {
    let units = [('k', 10), ('m', 20), ('g', 30)];
    let unit = units.iter().find_map(|&(unit, bits)| {
        let rest = text.strip_suffix([unit, unit.to_ascii_uppercase()])?;
        Some((rest, bits))
    });
    let (digits, bits) = unit.unwrap_or((text, 0));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let value = value?.checked_mul(1 << bits).context("too much")?;
    Ok(value.try_into()?)
}

/// Parses a number up to 255.
fn byte(text: &str) -> Result<u8> {
    Ok(number(text)?.try_into()?)
}

impl Arguments {
    fn options(&self, local: Ipv4Addr, peer: Ipv4Addr) -> Result<Options> {
        let options = Options {
            depth: self.depth,
            request: self.request,
            ack: self.ack,
            rdma: self.rdma,
            peer,
            local,
            port: self.port,
            tasks: self.tasks,
            seconds: self.seconds,
            summary: self.report_summary,
            rtprio: self.rtprio,
            trace: self.trace,
            verify: self.verify,
            monitor: self.use_cong_monitor == 1,
            use_once: self.rdma_use_once == 1,
            // Reused keys exist before the request.
            get_mr: self.rdma_use_get_mr == 1 || self.rdma_cache_mrs == 1,
            fence: self.rdma_use_fence == 1,
            cache: self.rdma_cache_mrs == 1,
            simplex: self.simplex,
            mode: match self.mode {
                0 => Mode::ReadWrite,
                1 => Mode::ReadOnly,
                _ => Mode::WriteOnly,
            },
            vector: self.vector,
            alignment: self.rdma_alignment,
            tos: self.tos,
        };
        options.check()?;
        Ok(options)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut soak = if arguments.report_cpu {
        Some(Soak::start()?)
    } else {
        None
    };
    match arguments.send {
        Some(peer) => active(&arguments, peer, &mut soak),
        None => passive(&arguments, &mut soak),
    }
}

/// The IPv4 address of an end of the connection.
fn ipv4(addr: SocketAddr) -> Result<Ipv4Addr> {
    match addr.ip() {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(ip) => bail!("{ip} is no IPv4 address"),
    }
}

fn connect(arguments: &Arguments, peer: Ipv4Addr) -> Result<TcpStream> {
    let to = SocketAddrV4::new(peer, arguments.port);
    println!("connecting to {to}");
    let mut tries = 0;
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => return Ok(stream),
            Err(_) if tries < arguments.connect_retries => {
                tries += 1;
                thread::sleep(Duration::from_secs(1));
            }
            Err(err) => return Err(err).with_context(|| format!("connecting to {to}")),
        }
    }
}

fn active(arguments: &Arguments, peer: Ipv4Addr, soak: &mut Option<Soak>) -> Result<()> {
    // Before connecting, check the options.
    arguments.options(Ipv4Addr::UNSPECIFIED, peer)?;
    let mut control = connect(arguments, peer)?;
    let local = match arguments.receive {
        Some(local) => local,
        None => ipv4(control.local_addr()?)?,
    };
    let options = arguments.options(local, peer)?;
    if arguments.show_params {
        println!("{options:#?}");
    }
    control.write_all(&options.to_wire())?;
    println!("negotiated options, tasks will start in 2 seconds");
    let tasks = tasks(&options, true)?;
    // Both sides have their sockets before either sends.
    control.write_all(&[0])?;
    control
        .read_exact(&mut [0])
        .context("the other side has ended")?;
    run(arguments, &options, tasks, control, true, soak)
}

fn passive(arguments: &Arguments, soak: &mut Option<Soak>) -> Result<()> {
    let local = arguments.receive.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let listener = TcpListener::bind((local, arguments.port))
        .with_context(|| format!("listening on {local}:{}", arguments.port))?;
    println!(
        "waiting for incoming connection on {local}:{}",
        arguments.port
    );
    let (mut control, from) = listener.accept()?;
    drop(listener);
    let local = arguments
        .receive
        .map_or_else(|| ipv4(control.local_addr()?), Ok)?;
    println!("accepted connection from {from} on {local}");
    let mut start = [0; START_LEN];
    control.read_exact(&mut start)?;
    let mut wire = start.to_vec();
    wire.resize(wire_len(&start)?, 0);
    control.read_exact(&mut wire[START_LEN..])?;
    let options = Options::from_wire(&wire, local).context("options of the other side")?;
    let tasks = tasks(&options, false)?;
    control
        .read_exact(&mut [0])
        .context("the other side has ended")?;
    control.write_all(&[0])?;
    println!("negotiated options, tasks will start in 2 seconds");
    run(arguments, &options, tasks, control, false, soak)
}

fn tasks(options: &Options, active: bool) -> Result<Vec<Task>> {
    (0..options.tasks)
        .map(|number| Task::new(number, options, active))
        .collect()
}

/// Gives this thread real-time priority, with `chrt`, because the call itself is unsafe in Rust.
fn set_realtime_priority() -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut chrt = Command::new("chrt");
    chrt.args(["--rr", "--pid", "1", &thread]);
    let status = chrt.status().context("chrt, of util-linux")?;
    ensure!(status.success(), "chrt cannot set SCHED_RR");
    Ok(())
}

/// Runs the tasks and prints their progress until the end.
fn run(
    arguments: &Arguments,
    options: &Options,
    mut tasks: Vec<Task>,
    control: TcpStream,
    active: bool,
    soak: &mut Option<Soak>,
) -> Result<()> {
    let shared = Shared {
        phase: AtomicU8::new(RUNNING),
        stats: tasks.iter().map(|_| Mutex::default()).collect(),
        outlier: arguments.show_outliers,
    };
    let path = arguments.info_socket.as_deref();
    let _asked = path
        .map(|path| InfoSocket::serve(path, tasks[0].socket().engine()))
        .transpose()
        .context("the socket for rds-info")?;
    thread::scope(|scope| {
        thread::sleep(Duration::from_secs(2));
        let threads: Vec<_> = tasks
            .iter_mut()
            .map(|task| {
                let shared = &shared;
                scope.spawn(move || {
                    let outcome = task.run(shared);
                    if outcome.is_err() {
                        // After an error, the tasks stop at once.
                        shared.phase.store(STOPPED, Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        let watched = watch(arguments, options, &shared, control, active, soak);
        shared.phase.store(STOPPED, Relaxed);
        for thread in threads {
            let outcome = thread.join();
            outcome.map_err(|_| anyhow!("a task has panicked"))??;
        }
        watched
    })
}

/// Prints the progress of the tasks every second until the end.
fn watch(
    arguments: &Arguments,
    options: &Options,
    shared: &Shared,
    control: TcpStream,
    active: bool,
    soak: &mut Option<Soak>,
) -> Result<()> {
    // Two more seconds for all tasks to start.
    thread::sleep(Duration::from_secs(2));
    if options.rtprio {
        set_realtime_priority()?;
    }
    let mut busy = || soak.as_mut().map_or(-1.0, Soak::busy);
    busy();
    println!("{TITLES}");
    let line = |stats: &Stats, seconds: f64, cpu: f64| {
        let tasks = options.tasks;
        let line = Line {
            tasks,
            stats,
            seconds,
            cpu,
        };
        line.to_string()
    };
    control.set_read_timeout(Some(Duration::from_secs(1)))?;
    let start = Instant::now();
    let first = total(shared);
    let (mut last, mut last_at) = (first, start);
    let (mut cpu, mut lines) = (0.0, 0_u32);
    while shared.phase.load(Relaxed) == RUNNING {
        // The active side ends the run by closing the connection.
        let closed = matches!((&control).read(&mut [0]), Ok(0));
        let (stats, now) = (total(shared), Instant::now());
        let seconds = (now - last_at).as_secs_f64();
        let percent = busy();
        if !options.summary && !closed {
            println!("{}", line(&stats.since(&last), seconds, percent));
        }
        (last, last_at) = (stats, now);
        (cpu, lines) = (cpu + percent, lines + 1);
        ensure!(
            !active || !closed || shared.phase.load(Relaxed) != RUNNING,
            "the other side has ended"
        );
        let limit = Duration::from_secs(options.seconds.into());
        if closed || (active && options.seconds > 0 && now - start >= limit) {
            break;
        }
    }
    drop(control);
    stop_asking(shared);
    let stats = last.since(&first);
    let seconds = (last_at - start).as_secs_f64();
    if !options.summary {
        println!("---------------------------------------------");
    }
    let average = line(&stats, seconds, cpu / f64::from(lines.max(1)));
    println!("{average}  (average)");
    if arguments.show_histogram {
        print_histogram(&total(shared));
    }
    Ok(())
}

/// Stops requests, and gives the tasks time to receive the answers in flight.
fn stop_asking(shared: &Shared) {
    let ended = shared
        .phase
        .compare_exchange(RUNNING, STOPPING, Relaxed, Relaxed);
    if ended.is_ok() {
        thread::sleep(GRACE);
    }
}

fn print_histogram(stats: &Stats) {
    println!("\nRTT histogram\nRTT (us)             Count");
    for (bucket, count) in stats.histogram.iter().enumerate() {
        println!("[{:6} - {:6}] {count:8}", 1 << bucket, 2 << bucket);
    }
}

fn total(shared: &Shared) -> Stats {
    let each = shared.stats.iter();
    let each = each.map(|stats| *stats.lock().unwrap_or_else(PoisonError::into_inner));
    each.fold(Stats::default(), |sum, stats| sum.plus(&stats))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_accepts_units() {
        let good = [
            ("0", 0),
            ("1024", 1024),
            ("0x400", 1024),
            ("1K", 1024),
            ("2m", 2 << 20),
            ("3G", 3 << 30),
        ];
        for (text, value) in good {
            assert_eq!(number(text).ok(), Some(value), "{text}");
        }
        for bad in ["", "K", "x", "-1", "4G", "1KB"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unsupported_options_are_rejected() {
        let options = |arguments: &[&str]| {
            let all = ["rds-stress", "-s", "10.9.0.2"].iter().chain(arguments);
            Arguments::parse_from(all).options([10, 9, 0, 1].into(), [10, 9, 0, 2].into())
        };
        let plain = options(&[]).unwrap();
        assert_eq!((plain.request, plain.ack, plain.depth), (1024, 63, 1));
        assert!(options(&["-q", "62"]).is_err());
        assert!(options(&["--rdma-cache-mrs", "1", "--rdma-use-once", "1"]).is_err());
        assert!(options(&["--rdma-cache-mrs", "1"]).unwrap().get_mr);
    }
}
