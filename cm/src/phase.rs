//! What an identifier is doing, and which event may come next: a state machine without I/O.
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
//! Datagrams have no connection, and one exchange of messages:
//!
//! ```text
//!               resolve_service                                    accept
//! RouteResolved ──▶ ResolvingService ──▶ ServiceResolved     Requested ──▶ Answered
//!                         ▼ Closed
//! ```
//!
//! Events come from the kernel, some of them at a peer's wish, so any event must be expected in any
//! phase. One that has no meaning there is reported as it is and changes nothing.

/// What an identifier is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
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

/// An event of the kernel, without its data.
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
    /// One this crate does not know.
    Other,
}

/// What an event means in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Meaning {
    /// The identifier comes back to its owner, in the phase given.
    Returns(Phase),
    /// A new identifier has come, in the phase `Requested`.
    Arrives,
    /// The owner, who has the identifier, is told.
    Tells,
    /// Nothing: the event is reported as it is.
    Nothing,
}

impl Phase {
    /// Whether the channel has the identifier, rather than its owner.
    pub(crate) fn is_pending(self) -> bool {
        matches!(
            self,
            Self::ResolvingAddr
                | Self::ResolvingRoute
                | Self::Connecting
                | Self::Accepting
                | Self::ResolvingService
        )
    }

    /// What `kind` means to an identifier in this phase.
    pub(crate) fn meaning(self, kind: Kind) -> Meaning {
        use Meaning::{Arrives, Nothing, Returns, Tells};
        match (self, kind) {
            (Self::ResolvingAddr, Kind::AddrResolved) => Returns(Self::AddrResolved),
            (Self::ResolvingAddr, Kind::AddrError) => Returns(Self::Idle),
            (Self::ResolvingRoute, Kind::RouteResolved) => Returns(Self::RouteResolved),
            (Self::ResolvingRoute, Kind::RouteError) => Returns(Self::AddrResolved),
            // iWARP has no third message: there, a connection is established with the response.
            (Self::Connecting, Kind::ConnectResponse | Kind::Established) => {
                Returns(Self::Responded)
            }
            (Self::Accepting, Kind::Established) => Returns(Self::Connected),
            (Self::ResolvingService, Kind::Established) => Returns(Self::ServiceResolved),
            (
                Self::Connecting | Self::Accepting | Self::ResolvingService,
                Kind::ConnectError | Kind::Unreachable | Kind::Rejected | Kind::Disconnected,
            ) => Returns(Self::Closed),
            (Self::Listening, Kind::ConnectRequest) => Arrives,
            (phase, Kind::DeviceRemoval) if phase.is_pending() => Returns(Self::Closed),
            (
                Self::Requested | Self::Responded | Self::Connected,
                Kind::Disconnected | Kind::Rejected | Kind::Unreachable | Kind::ConnectError,
            ) => Tells,
            (
                _,
                Kind::DeviceRemoval
                | Kind::MulticastJoin
                | Kind::MulticastError
                | Kind::AddrChange
                | Kind::TimewaitExit,
            ) => Tells,
            _ => Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    use super::{
        Kind::{self, *},
        Meaning::*,
        Phase,
    };

    const PHASES: [Phase; 15] = [
        Phase::Idle,
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

    const KINDS: [Kind; 17] = [
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
        Other,
    ];

    /// One letter for each event of `KINDS`: `r`eturns, `a`rrives, `t`ells, `.` no meaning.
    fn row(phase: Phase) -> String {
        KINDS
            .map(|kind| match phase.meaning(kind) {
                Returns(_) => 'r',
                Arrives => 'a',
                Tells => 't',
                Nothing => '.',
            })
            .iter()
            .collect()
    }

    #[test]
    fn every_event_in_every_phase_has_its_meaning() {
        let table = PHASES.map(row);
        // In the order of `KINDS`:      aarrccCURedDmMATo
        let expected = [
            "...........ttttt.", // Idle
            "rr.........rtttt.", // ResolvingAddr
            "...........ttttt.", // AddrResolved
            "..rr.......rtttt.", // ResolvingRoute
            "...........ttttt.", // RouteResolved
            ".....rrrrrrrtttt.", // Connecting
            "......ttt.tttttt.", // Responded
            "....a......ttttt.", // Listening
            "......ttt.tttttt.", // Requested
            "......rrrrrrtttt.", // Accepting
            "......ttt.tttttt.", // Connected
            "......rrrrrrtttt.", // ResolvingService
            "...........ttttt.", // ServiceResolved
            "...........ttttt.", // Answered
            "...........ttttt.", // Closed
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn only_what_the_channel_has_comes_back_and_never_to_the_channel() {
        for phase in PHASES {
            for kind in KINDS {
                match phase.meaning(kind) {
                    Returns(next) => {
                        assert!(phase.is_pending(), "{phase:?} {kind:?}");
                        assert!(!next.is_pending(), "{phase:?} {kind:?} -> {next:?}");
                    }
                    Arrives | Tells | Nothing => {}
                }
            }
        }
    }

    #[test]
    fn a_connection_comes_up_on_both_sides() {
        let returned = |phase: Phase, kind| match phase.meaning(kind) {
            Returns(next) => next,
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
        assert_eq!(Phase::Listening.meaning(ConnectRequest), Arrives);
        assert_eq!(returned(Phase::Accepting, Established), Phase::Connected);
        // What can be tried again comes back where it was.
        assert_eq!(returned(Phase::ResolvingAddr, AddrError), Phase::Idle);
        assert_eq!(
            returned(Phase::ResolvingRoute, RouteError),
            Phase::AddrResolved
        );
    }

    proptest! {
        /// A peer and a kernel send whatever they like, and a program does whatever it may.
        #[test]
        fn events_in_any_order_keep_the_owner_known(
            start in 0..PHASES.len(),
            events in collection::vec((0..KINDS.len(), 0..PHASES.len()), 0..64),
        ) {
            let mut phase = PHASES[start];
            for (kind, wish) in events {
                let pending = phase.is_pending();
                match phase.meaning(KINDS[kind]) {
                    // Only what the channel has is given back, and it is the program's then.
                    Returns(next) => {
                        prop_assert!(pending && !next.is_pending());
                        phase = next;
                    }
                    Arrives => prop_assert_eq!(phase, Phase::Listening),
                    // What is told or unknown changes nothing.
                    Tells | Nothing => prop_assert_eq!(phase.is_pending(), pending),
                }
                // The program goes on with what it has, in whatever direction.
                if !phase.is_pending() {
                    phase = PHASES[wish];
                }
            }
        }
    }
}
