//! The first example's server and client on two hosts of softnic in this process: `cargo xtask demo`.
//!
//! Prints the lines of both programs and a line for each frame between them. Exits with 1 if either program fails.

#![expect(clippy::print_stderr, reason = "a program for the terminal")]

use std::{
    env, io,
    process::ExitCode,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use softnic::Host;

use demo::{
    basic_client_server::{client, endpoint::Output, server},
    trace::{HOSTS, Trace},
};

const PORT: u16 = 7471;

/// Limit for the whole exchange. Connection requests without an answer fail after 5 s.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// News from a program's threads.
enum News {
    /// A line was printed.
    Line,
    /// The program has ended.
    End(anyhow::Result<()>),
}

fn main() -> ExitCode {
    match loss().and_then(exchange) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("{err:#}");
            ExitCode::FAILURE
        }
    }
}

/// The probability of loss on the command line; 0 without one.
fn loss() -> anyhow::Result<f64> {
    let words: Vec<_> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(0.0),
        ["--loss", loss] => {
            let loss: f64 = loss.parse().context("--loss takes a number")?;
            ensure!(
                (0.0..=1.0).contains(&loss),
                "--loss takes a probability, 0 to 1"
            );
            Ok(loss)
        }
        _ => bail!("usage: demo [--loss PROBABILITY]"),
    }
}

/// Runs both programs, and prints the trace even if one fails.
fn exchange(loss: f64) -> anyhow::Result<()> {
    let trace = Arc::new(Trace::new(loss));
    let ended = run_both(&trace);
    trace.write_to(&mut io::stdout().lock())?;
    ended
}

fn run_both(trace: &Arc<Trace>) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIME_LIMIT;
    let [a, b] = trace.hosts();
    let [(name_a, server_addr), (name_b, _)] = HOSTS;
    let (sender, news) = mpsc::channel();
    let next = || {
        let remaining = deadline.saturating_duration_since(Instant::now());
        news.recv_timeout(remaining)
            .with_context(|| format!("the programs have not ended within {TIME_LIMIT:?}"))
    };

    start(&a, name_a, trace, &sender, move |output| {
        server::run(([0; 4], PORT).into(), Some(1), output).context("the server has failed")
    });
    // The server's first line: it listens.
    if let News::End(ended) = next()? {
        return ended.context("the server has ended without a client");
    }
    start(&b, name_b, trace, &sender, move |output| {
        let server = std::net::Ipv4Addr::from(server_addr).to_string();
        client::run(&server, PORT, output).context("the client has failed")
    });
    let mut running = HOSTS.len();
    while running > 0 {
        if let News::End(ended) = next()? {
            ended?;
            running -= 1;
        }
    }
    Ok(())
}

/// Starts a program on a host.
fn start(
    host: &Host,
    name: char,
    trace: &Arc<Trace>,
    news: &Sender<News>,
    program: impl FnOnce(&Output) -> anyhow::Result<()> + Send + 'static,
) {
    let (trace, lines, news) = (Arc::clone(trace), news.clone(), news.clone());
    let output = Output::new(move |line| {
        trace.line(name, line);
        // No receiver: main has ended.
        let _ended = lines.send(News::Line);
    });
    host.spawn(move || {
        let _ended = news.send(News::End(program(&output)));
    });
}
