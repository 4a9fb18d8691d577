//! The span of a stream for the crate `tracing`, with the target `rsocket`. Without the feature `tracing` the span is empty, and
//! [`note`] expands to nothing. No data passes through here.

use std::net::SocketAddr;

use verbs::qp::QpNum;

/// Emits an event in the span of a stream: `note!(level, span, fields…, "text")`.
macro_rules! note {
    ($level:ident, $span:expr, $($event:tt)+) => {{
        let _span = &$span;
        #[cfg(feature = "tracing")]
        _span.run(|| {
            tracing::$level!(target: "rsocket", $($event)+);
        });
    }};
}
pub(crate) use note;

/// The span of a stream, from the first step of its connection to the end.
#[derive(Clone, Debug)]
pub(crate) struct StreamSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[cfg(feature = "tracing")]
impl StreamSpan {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        use tracing::field::Empty;
        // The level at which the span is still there for the failures.
        let span =
            tracing::warn_span!(target: "rsocket", "stream", %peer, local = Empty, qp = Empty);
        Self { span }
    }

    /// Runs a call in the span, so that the identifiers and events of `cm` have this context.
    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        self.span.in_scope(call)
    }

    /// Reports the established connection. Called once.
    pub(crate) fn connected(&self, local: SocketAddr, qp: QpNum) {
        use tracing::field::display;
        self.span.record("local", display(local));
        self.span.record("qp", display(qp));
        note!(debug, self, "connected");
    }
}

#[cfg(not(feature = "tracing"))]
impl StreamSpan {
    pub(crate) fn new(_: SocketAddr) -> Self {
        Self {}
    }

    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        call()
    }

    pub(crate) fn connected(&self, _: SocketAddr, _: QpNum) {}
}
