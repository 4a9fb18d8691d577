//! Phases of an identifier and the allowed events: a state machine without I/O.
//!
//! ```text
//!          resolve_addr          resolve_route           connect              establish
//! Idle ──▶ ResolvingAddr ──▶ AddrResolved ──▶ ResolvingRoute ──▶ RouteResolved ──▶ Connecting ──▶ Responded ──▶ Connected
//!   │            │ AddrError ▲      │ RouteError ▲                                   │
//!   │ listen     ▼ back to Idle     ▼ back to AddrResolved                           ▼ Closed
//!   ▼                    accept
//! Listening ┄▶ Requested ──▶ Accepting ──▶ Connected
//! ```
//!
//! Datagrams have no connection, but one exchange of messages:
//!
//! ```text
//!               resolve_service                                    accept
//! RouteResolved ──▶ ResolvingService ──▶ ServiceResolved     Requested ──▶ Answered
//!                         ▼ Closed
//! ```
//!
//! A name lookup, `resolve_addrinfo`, leads from `Idle` to `ResolvingAddrInfo`, and back.
//!
//! Events come from the kernel, some triggered by a peer, so any event can occur in any phase. An event
//! without meaning in a phase is reported unchanged, and has no effect.

/// Phase of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    ResolvingAddrInfo,
    ResolvingAddr,
    AddrResolved,
    ResolvingRoute,
    RouteResolved,
    Connecting,
    Responded,
    Listening,
    Requested,
    Accepting,
    Connected,
    ResolvingService,
    ServiceResolved,
    Answered,
    Closed,
}

/// Kind of an event, without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    MulticastJoin,
    MulticastError,
    AddrChange,
    TimewaitExit,
    /// End of a name lookup, an event of this process.
    AddrInfo,
    /// An event unknown to this crate.
    Other,
}

/// Effect of an event in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Disposition {
    /// Returns the identifier to the program, in the given phase.
    ReturnsId(Phase),
    /// Delivers a new identifier, in the phase `Requested`.
    NewId,
    /// Notifies the program, which owns the identifier.
    Notifies,
    /// No effect: the event is reported unchanged.
    Ignored,
}

impl Phase {
    /// Whether the channel owns the identifier, instead of the program.
    pub(crate) fn is_pending(self) -> bool {
        matches!(
            self,
            Self::ResolvingAddrInfo
                | Self::ResolvingAddr
                | Self::ResolvingRoute
                | Self::Connecting
                | Self::Accepting
                | Self::ResolvingService
        )
    }

    /// Effect of `kind` on an identifier in this phase.
    pub(crate) fn disposition(self, kind: Kind) -> Disposition {
        use Disposition::{Ignored, NewId, Notifies, ReturnsId};
        match (self, kind) {
            (Self::ResolvingAddrInfo, Kind::AddrInfo) => ReturnsId(Self::Idle),
            (Self::ResolvingAddr, Kind::AddrResolved) => ReturnsId(Self::AddrResolved),
            (Self::ResolvingAddr, Kind::AddrError) => ReturnsId(Self::Idle),
            (Self::ResolvingRoute, Kind::RouteResolved) => ReturnsId(Self::RouteResolved),
            (Self::ResolvingRoute, Kind::RouteError) => ReturnsId(Self::AddrResolved),
            // iWARP has no third message: the connection is established with the response.
            (Self::Connecting, Kind::ConnectResponse | Kind::Established) => {
                ReturnsId(Self::Responded)
            }
            (Self::Accepting, Kind::Established) => ReturnsId(Self::Connected),
            (Self::ResolvingService, Kind::Established) => ReturnsId(Self::ServiceResolved),
            (
                Self::Connecting | Self::Accepting | Self::ResolvingService,
                Kind::ConnectError | Kind::Unreachable | Kind::Rejected | Kind::Disconnected,
            ) => ReturnsId(Self::Closed),
            (Self::Listening, Kind::ConnectRequest) => NewId,
            (phase, Kind::DeviceRemoval) if phase.is_pending() => ReturnsId(Self::Closed),
            (
                Self::Requested | Self::Responded | Self::Connected,
                Kind::Disconnected | Kind::Rejected | Kind::Unreachable | Kind::ConnectError,
            ) => Notifies,
            (
                _,
                Kind::DeviceRemoval
                | Kind::MulticastJoin
                | Kind::MulticastError
                | Kind::AddrChange
                | Kind::TimewaitExit,
            ) => Notifies,
            _ => Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    use super::{
        Disposition::*,
        Kind::{self, *},
        Phase,
    };

    const PHASES: [Phase; 16] = [
        Phase::Idle,
        Phase::ResolvingAddrInfo,
        Phase::ResolvingAddr,
        Phase::AddrResolved,
        Phase::ResolvingRoute,
        Phase::RouteResolved,
        Phase::Connecting,
        Phase::Responded,
        Phase::Listening,
        Phase::Requested,
        Phase::Accepting,
        Phase::Connected,
        Phase::ResolvingService,
        Phase::ServiceResolved,
        Phase::Answered,
        Phase::Closed,
    ];

    const KINDS: [Kind; 18] = [
        AddrResolved,
        AddrError,
        RouteResolved,
        RouteError,
        ConnectRequest,
        ConnectResponse,
        ConnectError,
        Unreachable,
        Rejected,
        Established,
        Disconnected,
        DeviceRemoval,
        MulticastJoin,
        MulticastError,
        AddrChange,
        TimewaitExit,
        AddrInfo,
        Other,
    ];

    /// One letter per event of `KINDS`: `r`eturns, `a`dds an identifier, no`t`ifies, `.` ignored.
    fn row(phase: Phase) -> String {
        KINDS
            .map(|kind| match phase.disposition(kind) {
                ReturnsId(_) => 'r',
                NewId => 'a',
                Notifies => 't',
                Ignored => '.',
            })
            .iter()
            .collect()
    }

    #[test]
    fn every_event_in_every_phase_has_the_documented_disposition() {
        let table = PHASES.map(row);
        // In the order of `KINDS`:      aarrccCURedDmMATio
        let expected = [
            "...........ttttt..", // Idle
            "...........rttttr.", // ResolvingAddrInfo
            "rr.........rtttt..", // ResolvingAddr
            "...........ttttt..", // AddrResolved
            "..rr.......rtttt..", // ResolvingRoute
            "...........ttttt..", // RouteResolved
            ".....rrrrrrrtttt..", // Connecting
            "......ttt.tttttt..", // Responded
            "....a......ttttt..", // Listening
            "......ttt.tttttt..", // Requested
            "......rrrrrrtttt..", // Accepting
            "......ttt.tttttt..", // Connected
            "......rrrrrrtttt..", // ResolvingService
            "...........ttttt..", // ServiceResolved
            "...........ttttt..", // Answered
            "...........ttttt..", // Closed
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn only_pending_identifiers_are_returned_and_to_the_program() {
        for phase in PHASES {
            for kind in KINDS {
                match phase.disposition(kind) {
                    ReturnsId(next) => {
                        assert!(phase.is_pending(), "{phase:?} {kind:?}");
                        assert!(!next.is_pending(), "{phase:?} {kind:?} -> {next:?}");
                    }
                    NewId | Notifies | Ignored => {}
                }
            }
        }
    }

    #[test]
    fn connection_setup_reaches_connected_on_both_sides() {
        let returned = |phase: Phase, kind| match phase.disposition(kind) {
            ReturnsId(next) => next,
            other => panic!("{phase:?} {kind:?}: {other:?}"),
        };
        assert_eq!(
            returned(Phase::ResolvingAddr, AddrResolved),
            Phase::AddrResolved
        );
        assert_eq!(
            returned(Phase::ResolvingRoute, RouteResolved),
            Phase::RouteResolved
        );
        assert_eq!(
            returned(Phase::Connecting, ConnectResponse),
            Phase::Responded
        );
        assert_eq!(returned(Phase::Connecting, Established), Phase::Responded);
        assert_eq!(
            returned(Phase::ResolvingService, Established),
            Phase::ServiceResolved
        );
        assert_eq!(Phase::Listening.disposition(ConnectRequest), NewId);
        assert_eq!(returned(Phase::Accepting, Established), Phase::Connected);
        // After a failed resolution the identifier is in the previous phase.
        assert_eq!(returned(Phase::ResolvingAddr, AddrError), Phase::Idle);
        assert_eq!(
            returned(Phase::ResolvingRoute, RouteError),
            Phase::AddrResolved
        );
    }

    proptest! {
        /// Arbitrary events of peer and kernel, and all calls allowed for the program.
        #[test]
        fn events_in_any_order_keep_the_owner_known(
            start in 0..PHASES.len(),
            events in collection::vec((0..KINDS.len(), 0..PHASES.len()), 0..64),
        ) {
            let mut phase = PHASES[start];
            for (kind, wish) in events {
                let pending = phase.is_pending();
                match phase.disposition(KINDS[kind]) {
                    // Only pending identifiers are returned, to the program.
                    ReturnsId(next) => {
                        prop_assert!(pending && !next.is_pending());
                        phase = next;
                    }
                    NewId => prop_assert_eq!(phase, Phase::Listening),
                    // Notifications and ignored events change nothing.
                    Notifies | Ignored => prop_assert_eq!(phase.is_pending(), pending),
                }
                // The program makes any call allowed.
                if !phase.is_pending() {
                    phase = PHASES[wish];
                }
            }
        }
    }
}
