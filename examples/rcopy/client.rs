//! The sending side: reads the file.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use examples::rcopy::message::{Header, send_open};
use indicatif::{ProgressBar, ProgressStyle};
use rsocket::Stream;

const CHUNK: usize = 1 << 20;

#[expect(clippy::print_stdout, reason = "the output of the program")]
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn run(source: &Path, server: &str, port: u16) -> Result<()> {
    let (host, destination) = match server.split_once(':') {
        Some((host, destination)) => (host, destination.as_bytes()),
        None => (server, source.as_os_str().as_bytes()),
    };
    let context = || format!("cannot read {}", source.display());
    let mut file = File::open(source).with_context(context)?;
    let metadata = file.metadata().with_context(context)?;
    let size = metadata.len();

    let mut stream = Stream::connect((host, port))
        .with_context(|| format!("cannot connect to {host}, port {port}"))?;
    send_open(&mut stream, destination, metadata.permissions().mode())?;
    Header::expect_answer(&mut stream, Header::OPEN).context("cannot create the file there")?;

    let mut message = Header::command(Header::WRITE, 8, 0)?.encode().to_vec();
    message.extend_from_slice(&size.to_ne_bytes());
    stream.write_all(&message)?;
    let bar = ProgressBar::new(size).with_style(ProgressStyle::with_template(
        "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}",
    )?);
    let start = Instant::now();
    let mut chunk = vec![0; CHUNK];
    let mut sent = 0;
    while sent < size {
        let len = file.read(&mut chunk).with_context(context)?;
        ensure!(len > 0, "{} has become shorter", source.display());
        // The file may have grown: only the advertised size is sent.
        let len = usize::try_from(size - sent).map_or(len, |remaining| remaining.min(len));
        stream.write_all(&chunk[..len])?;
        sent += len as u64;
        bar.set_position(sent);
    }
    Header::expect_answer(&mut stream, Header::WRITE).context("cannot write the file there")?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    stream.write_all(&Header::command(Header::CLOSE, 0, 0)?.encode())?;
    Header::expect_answer(&mut stream, Header::CLOSE).context("cannot close the file there")?;
    println!(
        "{size} bytes in {seconds:.2} seconds = {:.2} Gb/sec",
        size as f64 * 8.0 / 1e9 / seconds
    );
    Ok(())
}
