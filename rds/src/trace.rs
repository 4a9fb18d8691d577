//! The span of a connection for the crate `tracing`, with the target `rds`. Without the feature `tracing` the span is empty, and
//! [`note`] expands to nothing. No message passes through here.

use crate::proto::node::Route;

/// Emits an event in the span of a connection: `note!(level, span, fields…, "text")`.
macro_rules! note {
    ($level:ident, $span:expr, $($event:tt)+) => {{
        let _span = &$span;
        #[cfg(feature = "tracing")]
        _span.run(|| {
            tracing::$level!(target: "rds", $($event)+);
        });
    }};
}
pub(crate) use note;

/// The span of one connection attempt, and of the connection that follows.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[cfg(feature = "tracing")]
impl ConnectionSpan {
    pub(crate) fn new(route: Route) -> Self {
        let Route { local, peer, tos } = route;
        // The level at which the span is still there for the failures.
        let span = tracing::warn_span!(target: "rds", "connection", %local, %peer, tos);
        Self { span }
    }

    /// Runs a call in the span, so that the identifiers and events of `cm` have this context.
    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        self.span.in_scope(call)
    }
}

#[cfg(not(feature = "tracing"))]
impl ConnectionSpan {
    pub(crate) fn new(_: Route) -> Self {
        Self {}
    }

    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        call()
    }
}
