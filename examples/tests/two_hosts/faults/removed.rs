//! A device that is removed with connections up.

use std::{
    net::SocketAddr,
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use cm::{ConnParam, ConnectFailure, Connection, Event, EventChannel, Key};

use crate::{PATIENCE, next, resolve, side::Side};

/// Both ends of a connection, and one more that is asked for, when the device goes.
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

    // A request that is not accepted is told nothing: the kernel has no place for it yet.
    let mut told = vec![
        ("listener", listener.key()),
        ("active", active.key()),
        ("passive", passive.key()),
        ("asking", asking_key),
    ];
    let mut deletion = Command::new("rdma")
        .args(["link", "delete", "rxe0"])
        .spawn()?;
    while !told.is_empty() {
        let event = next(&channel).with_context(|| format!("{told:?} are not told"))?;
        let (key, right) = match event {
            Event::DeviceRemoval(key) => (key, key != asking_key),
            Event::ConnectFailed { id, failure } => {
                (id.key(), failure == ConnectFailure::DeviceRemoved)
            }
            _ => continue,
        };
        ensure!(right, "{key:?} is told something else");
        forget(&mut told, key)?;
    }
    // New ones are refused, and what there is can be dropped.
    let refused = resolve(&channel, addr)?.map(drop).is_err();
    ensure!(refused, "there is still a way");
    drop((active, passive, asking_qp, request, listener, side));
    drop(channel);
    Ok(match ended(&mut deletion)? {
        true => "removed".into(),
        false => "removed when the process has ended".into(),
    })
}

fn forget(told: &mut Vec<(&str, Key)>, key: Key) -> Result<()> {
    let before = told.len();
    told.retain(|(_, waiting)| *waiting != key);
    ensure!(told.len() < before, "{key:?} is told twice, or a stranger");
    Ok(())
}

/// Whether the kernel is done with the device while this process lives.
fn ended(deletion: &mut Child) -> Result<bool> {
    let late = Instant::now() + PATIENCE / 4;
    while Instant::now() < late {
        if deletion.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(false)
}
