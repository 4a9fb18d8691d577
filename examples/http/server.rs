//! An HTTP server over RDMA: hyper runs on a `tokio::Stream` as on a TCP stream, without knowledge of RDMA.
//!
//! `GET /` returns a greeting, `GET /bytes/N` returns N bytes, and `POST /echo` returns the request's body.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]
#![expect(clippy::print_stderr, reason = "a program for the terminal")]

use std::{convert::Infallible, net::SocketAddr, process::ExitCode};

use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rsocket::tokio::{Listener, Stream};
use tokio::task::JoinSet;

use examples::{http::pattern, pingpong::options::finish};

/// Maximum body size, in bytes, of answers and of requests.
const MAX_BODY: usize = 64 << 20;

/// Serves HTTP/1.1 over rsockets
#[derive(Parser)]
#[command(name = "http-server")]
struct Options {
    /// The address to listen on
    #[arg(short, long, default_value = "0.0.0.0")]
    bind: String,
    /// The port
    #[arg(short, long, default_value_t = 8080)]
    port: u16,
    /// Exit after this number of connections, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<usize>,
}

fn main() -> ExitCode {
    finish(run(&Options::parse()))
}

#[tokio::main(flavor = "current_thread")]
async fn run(options: &Options) -> anyhow::Result<()> {
    let listener = Listener::bind((options.bind.as_str(), options.port))?;
    println!("listening on port {}", options.port);
    let mut connections = JoinSet::new();
    let mut accepted = 0;
    while options.clients.is_none_or(|limit| accepted < limit) {
        let (stream, peer) = listener.accept().await?;
        accepted += 1;
        connections.spawn(serve(stream, peer));
        while connections.try_join_next().is_some() {}
    }
    connections.join_all().await;
    Ok(())
}

async fn serve(stream: Stream, peer: SocketAddr) {
    let connection =
        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
    // A peer's early disconnect does not end the server.
    if let Err(err) = connection.await {
        eprintln!("{peer}: {err}");
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = match (request.method(), path.as_str()) {
        (&Method::GET, "/") => Ok("hello over RDMA\n".into()),
        (&Method::POST, "/echo") => match request.into_body().collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(_) => Err(StatusCode::BAD_REQUEST),
        },
        (&Method::GET, path) => match path.strip_prefix("/bytes/").map(str::parse) {
            Some(Ok(len @ 0..=MAX_BODY)) => Ok(pattern(len).into()),
            Some(_) => Err(StatusCode::BAD_REQUEST),
            None => Err(StatusCode::NOT_FOUND),
        },
        _ => Err(StatusCode::METHOD_NOT_ALLOWED),
    };
    let (status, body) = match body {
        Ok(body) => (StatusCode::OK, body),
        Err(status) => (status, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}
