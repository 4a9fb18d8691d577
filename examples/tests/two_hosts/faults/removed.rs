//! Removal of a device with established connections.

use std::{
    net::SocketAddr,
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use cm::{ConnParam, ConnectFailure, Connection, Event, EventChannel, Key};

use crate::{TEST_TIMEOUT, next, resolve, side::Side};

/// Removes the device below both ends of a connection, and a second one still being requested.
pub(crate) fn run(addr: SocketAddr) -> Result<String> {
    let channel = EventChannel::new()?;
    let mut id = channel.create_id()?;
    id.bind(addr)?;
    let listener = id.listen(8)?;
    let Ok(id) = resolve(&channel, addr)? else {
        bail!("no way to {addr}")
    };
    let mut side = Side::new(&id.context()?)?;
    let qp = side.qp(&id)?;
    id.connect(&qp, &ConnParam::new())?;
    let Event::ConnectRequest(request) = next(&channel)? else {
        bail!("no request")
    };
    let passive_qp = side.qp(request.id())?;
    let passive_qp = request.accept(passive_qp, &ConnParam::new())?;
    let Event::ConnectResponse(response) = next(&channel)? else {
        bail!("no response")
    };
    let active = response.establish(qp)?;
    let Event::Established(id) = next(&channel)? else {
        bail!("not established")
    };
    let passive = Connection::new(id, passive_qp).map_err(|refused| refused.error)?;

    let Ok(asking) = resolve(&channel, addr)? else {
        bail!("no way to {addr}")
    };
    let asking_qp = side.qp(&asking)?;
    let asking_key = asking.key();
    asking.connect(&asking_qp, &ConnParam::new())?;
    let Event::ConnectRequest(request) = next(&channel)? else {
        bail!("no second request")
    };

    // A request not accepted yet gets no event: the kernel has no identifier for the request.
    let mut waiting = vec![
        ("listener", listener.key()),
        ("active", active.key()),
        ("passive", passive.key()),
        ("asking", asking_key),
    ];
    let mut deletion = Command::new("rdma")
        .args(["link", "delete", "rxe0"])
        .spawn()?;
    expect_removals(&channel, &mut waiting, asking_key)?;
    // New connections fail, and existing resources can be dropped.
    let refused = resolve(&channel, addr)?.map(drop).is_err();
    ensure!(refused, "resolving still succeeds");
    drop((active, passive, asking_qp, request, listener, side));
    drop(channel);
    Ok(match ended(&mut deletion)? {
        true => "removed".into(),
        false => "removed when the process has ended".into(),
    })
}

/// Takes one event for each of the identifiers: a removal, or the failure of the connection of
/// `asking_key`.
fn expect_removals(
    channel: &EventChannel,
    waiting: &mut Vec<(&str, Key)>,
    asking_key: Key,
) -> Result<()> {
    while !waiting.is_empty() {
        let event = next(channel).with_context(|| format!("no event for {waiting:?}"))?;
        let (key, right) = match event {
            Event::DeviceRemoval(key) => (key, key != asking_key),
            Event::ConnectFailed { id, failure } => {
                (id.key(), failure == ConnectFailure::DeviceRemoved)
            }
            _ => continue,
        };
        ensure!(right, "unexpected event for {key:?}");
        forget(waiting, key)?;
    }
    Ok(())
}

fn forget(waiting: &mut Vec<(&str, Key)>, key: Key) -> Result<()> {
    let before = waiting.len();
    waiting.retain(|(_, other)| *other != key);
    ensure!(
        waiting.len() < before,
        "a second event for {key:?}, or an unknown identifier"
    );
    Ok(())
}

/// Whether the kernel has removed the device while this process lives.
fn ended(deletion: &mut Child) -> Result<bool> {
    let late = Instant::now() + TEST_TIMEOUT / 4;
    while Instant::now() < late {
        if deletion.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(false)
}
