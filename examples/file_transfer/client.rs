//! The client of the-geek-in-the-corner's third example, in safe Rust: it sends a file.
//!
//! Interoperates with the C program of the same name.

use std::{
    ffi::OsString, fs::File, os::unix::ffi::OsStrExt as _, path::PathBuf, process::ExitCode,
};

use anyhow::{Context as _, ensure};
use clap::Parser;
use cm::event_loop::EventLoop;
use indicatif::{ProgressBar, ProgressStyle};

use examples::{address::resolve, file_transfer::sender::Sender, pingpong::options::finish};

/// Sends a file
#[derive(Parser)]
#[command(name = "file-transfer-client")]
struct Options {
    /// The server's address, or its name
    server_address: String,
    /// The file
    file_name: PathBuf,
    /// The file's name on the server, if different
    #[arg(long, value_name = "NAME")]
    name: Option<OsString>,
    /// The server's port
    #[arg(short, long, default_value_t = 12345)]
    port: u16,
}

fn main() -> ExitCode {
    finish(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<()> {
    let path = &options.file_name;
    let cannot = || format!("cannot send {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let metadata = file.metadata().with_context(cannot)?;
    ensure!(metadata.is_file(), "{} is no file", path.display());
    let name = options.name.as_deref().or(path.file_name());
    let name = name.with_context(cannot)?;
    let server = resolve(&options.server_address, options.port)?;
    let style = "{bytes}/{total_bytes} {wide_bar} {binary_bytes_per_sec}, {eta} left";
    let bar = ProgressBar::new(metadata.len()).with_style(ProgressStyle::with_template(style)?);
    let sender = Sender {
        name: name.as_bytes().to_vec(),
        file,
        bar,
    };
    EventLoop::connect(sender, None, server)?.run().map(drop)
}
