//! An HTTP client over RDMA, by hyper.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use rsocket::tokio::Stream;

use examples::{http::pattern, pingpong::options::finish};

/// Sends HTTP/1.1 requests over rsockets, one after another on one connection
#[derive(Parser)]
#[command(name = "http-client")]
struct Options {
    /// The server
    host: String,
    /// The port
    #[arg(short, long, default_value_t = 8080)]
    port: u16,
    /// Send this number of bytes to /echo, and compare the answer
    #[arg(short, long, value_name = "BYTES")]
    echo: Option<usize>,
    /// Paths to get; of /bytes/N, the content is checked
    #[arg(default_value = "/")]
    paths: Vec<String>,
}

fn main() -> ExitCode {
    finish(run(&Options::parse()))
}

#[tokio::main(flavor = "current_thread")]
async fn run(options: &Options) -> anyhow::Result<()> {
    let stream = Stream::connect((options.host.as_str(), options.port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    for path in &options.paths {
        let request = Request::get(path).header(HOST, &options.host);
        let response = sender.send_request(request.body(Full::default())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("GET {path}: {status}, {} bytes", body.len());
        if let Some(len) = path.strip_prefix("/bytes/")
            && status.is_success()
        {
            let len = len.parse().context("a number of bytes")?;
            anyhow::ensure!(body == pattern(len), "{path}: other bytes came");
        }
    }
    if let Some(len) = options.echo {
        let sent = Bytes::from(pattern(len));
        let request = Request::builder()
            .method(Method::POST)
            .uri("/echo")
            .header(HOST, &options.host);
        let request = request.body(Full::new(sent.clone()))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(body == sent, "other bytes came back");
        println!("POST /echo: {status}, {} bytes", body.len());
    }
    drop(sender);
    connection.await??;
    Ok(())
}
