//! Joining, exchanging messages, and leaving.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, bail};
use cm::{
    CmId, Event, EventChannel, IbAddr,
    phases::{IdPhase, Idle},
};
use verbs::Gid;

use examples::{address::resolve, cm_tool::failure::Failure};

use crate::{Options, member::Member};

/// Timeout for resolving the address.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Delay for switches to add a new member. A message sent earlier, by a member unknown to the switches, is
/// lost.
const PAUSE: Duration = Duration::from_secs(3);

/// Runs the exchange selected by the options.
///
/// # Errors
/// Joining the group failed, or a device has failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let channel = EventChannel::new()?;
    let source = match &options.bind {
        Some(bind) => Some(resolve(bind, 0)?),
        None => None,
    };
    if let Some(gid) = options.unmapped {
        let group = IbAddr::with_service_id(Gid(gid.octets()), 0).into();
        println!("mckey: joining");
        let mut members = Vec::new();
        for _ in 0..options.connections {
            members.push(Member::new(
                bound(&channel, source, options)?,
                group,
                options,
            )?);
        }
        return exchange(&channel, members, options);
    }
    let group = options.multicast.as_deref();
    let group = resolve(group.context("there is no group")?, 0)?;
    println!("mckey: joining");
    for _ in 0..options.connections {
        let id = bound(&channel, source, options)?;
        let started = id.resolve_addr(source, group, TIMEOUT);
        started.context("mckey: resolve addr failure")?;
    }
    let mut members = Vec::new();
    let mut early = Vec::new();
    while members.len() < options.connections as usize {
        match channel.wait()? {
            Event::AddrResolved(id) => members.push(Member::new(id, group.into(), options)?),
            Event::AddrError { error, .. } => fail(Failure::of_addr(&error))?,
            // A join completed before another member's address was resolved.
            other => early.push(other),
        }
    }
    for event in early {
        on_join(event, &mut members, options)?;
    }
    exchange(&channel, members, options)
}

/// Creates an identifier, bound to the local address if given.
fn bound(
    channel: &EventChannel,
    source: Option<SocketAddr>,
    options: &Options,
) -> anyhow::Result<CmId<Idle>> {
    let mut id = channel.create_id_in(options.space)?;
    if let Some(source) = source {
        id.bind(source).context("mckey: addr bind failure")?;
    }
    Ok(id)
}

/// Waits until all have joined, sends or receives, and leaves.
fn exchange<P: IdPhase>(
    channel: &EventChannel,
    mut members: Vec<Member<P>>,
    options: &Options,
) -> anyhow::Result<()> {
    while !members.iter().all(Member::is_joined) {
        on_join(channel.wait()?, &mut members, options)?;
    }
    thread::sleep(PAUSE);
    if options.messages() > 0 {
        if options.sender {
            println!("initiating data transfers");
            let mut each = members.iter_mut();
            each.try_for_each(|member| member.send_all(options))?;
        } else {
            println!("receiving data transfers");
            let mut each = members.iter_mut();
            each.try_for_each(|member| member.receive_all(channel, options))?;
        }
        println!("data transfers complete");
    }
    let mut each = members.iter_mut();
    each.try_for_each(|member| member.leave(options))
}

fn on_join<P: IdPhase>(
    event: Event,
    members: &mut [Member<P>],
    options: &Options,
) -> anyhow::Result<()> {
    match event {
        Event::MulticastJoined { key, group } => {
            let member = members.iter_mut().find(|member| member.key() == key);
            member
                .context("an event for an unknown member")?
                .join(group, options)
        }
        Event::MulticastFailed { error, .. } => fail(Failure::of_multicast(&error)),
        Event::DeviceRemoval(_) => bail!("the device has been removed"),
        // No action.
        _ => Ok(()),
    }
}

/// Reports an event of a member.
///
/// # Errors
/// The device has been removed.
pub(crate) fn report_event(event: &Event) -> anyhow::Result<()> {
    match event {
        Event::MulticastFailed { error, .. } => report(Failure::of_multicast(error)),
        Event::AddrChange(_) => report(Failure::of_change()),
        Event::DeviceRemoval(_) => bail!("the device has been removed"),
        _ => {}
    }
    Ok(())
}

fn report(failure: Failure) {
    println!(
        "mckey: event: {}, status: {}",
        failure.event(),
        failure.status()
    );
}

fn fail(failure: Failure) -> anyhow::Result<()> {
    println!("mckey: {failure}");
    bail!(failure)
}
