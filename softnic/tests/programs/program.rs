//! Programs: steps chosen by a seed, without those removed by the minimizer.

use std::{fmt, str::FromStr};

use fastrand::Rng;
use softnic::Call;

/// Maximum number of steps of a program.
const MAX_STEPS: usize = 60;

/// Calls that fail in programs. Each failed call has no effect.
const FAILING: [Call; 8] = [
    Call::PostSend,
    Call::PostRecv,
    Call::WrComplete,
    Call::ResizeCq,
    Call::RegMr,
    Call::ModifyQp,
    Call::PollCq,
    Call::BindMw,
];

/// Requests posted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// One by one.
    Single,
    /// As a chain of `ibv_post_send`.
    Batch,
    /// By `ibv_wr_complete`.
    Extended,
    /// As a batch that is dropped before the post.
    Forgotten,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    /// With immediate data.
    SendImm,
    Write,
    Read,
    Add,
}

/// A step of a program, on one of two hosts where it names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Posts a number of requests.
    Post(Posting, [Kind; 3], usize),
    /// Posts a number of receives, together or one by one.
    Receive(usize, bool),
    /// A write or read of more bytes than its token has.
    Overrun(Kind),
    /// Lets the fabric take a number of steps.
    Run(u8),
    /// Takes completions, for an odd number in reverse; every n-th is dropped without its work.
    Poll(usize),
    /// Changes the size of the completion queue.
    Resize(u32),
    /// Lets calls fail from now on: one in n.
    Fail(Call, u64),
    /// Ends the failures.
    Heal,
    /// Binds a window to a slot, lets the peer write through the window, and drops it.
    Window,
    /// Requests on borrowed memory, in a scope that ends with the requests in flight.
    Scope,
    /// Two threads give up the handles of a frozen buffer at the same time.
    Thaw,
    /// The link goes down or up.
    Link(bool),
    /// Moves the queue pair to the error state.
    ToError,
    /// Destroys both queue pairs and connects new ones.
    Reconnect,
}

/// A program: the seed, and the steps, each with the host and its number in the seed's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) steps: Vec<(usize, usize, Step)>,
}

impl Program {
    /// The whole program of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let len = rng.usize(1..=MAX_STEPS);
        let steps = (0..len).map(|number| (number, rng.usize(..2), step(&mut rng)));
        Self {
            seed,
            steps: steps.collect(),
        }
    }

    /// Programs with fewer steps, the shortest ones first.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut chunk = self.steps.len().div_ceil(2);
        while chunk > 0 && self.steps.len() > 1 {
            for start in (0..self.steps.len()).step_by(chunk) {
                let mut smaller = self.clone();
                let end = (start + chunk).min(smaller.steps.len());
                smaller.steps.drain(start..end);
                all.push(smaller);
            }
            chunk /= 2;
        }
        all
    }
}

fn step(rng: &mut Rng) -> Step {
    let count = 1 + rng.usize(..6);
    let kind = |rng: &mut Rng| match rng.u8(..8) {
        0..3 => Kind::Send,
        3 => Kind::SendImm,
        4..6 => Kind::Write,
        6 => Kind::Read,
        _ => Kind::Add,
    };
    match rng.u8(..32) {
        0..7 => {
            let posting = match rng.u8(..6) {
                0 | 1 => Posting::Single,
                2 | 3 => Posting::Batch,
                4 => Posting::Extended,
                _ => Posting::Forgotten,
            };
            Step::Post(posting, [(); 3].map(|()| kind(rng)), count)
        }
        7..12 => Step::Receive(count, rng.bool()),
        12 => Step::Overrun(if rng.bool() { Kind::Write } else { Kind::Read }),
        13..17 => Step::Run(rng.u8(..120)),
        17..22 => Step::Poll(rng.usize(..5)),
        22 => Step::Resize(rng.u32(1..200)),
        23 | 24 => Step::Fail(FAILING[rng.usize(..FAILING.len())], rng.u64(1..4)),
        25 => Step::Heal,
        26 => Step::Window,
        27 => Step::Scope,
        28 => Step::Thaw,
        29 => Step::Link(rng.u8(..3) > 0),
        30 if rng.bool() => Step::ToError,
        30 => Step::Heal,
        _ => Step::Reconnect,
    }
}

/// `seed`, and the numbers of the remaining steps: `17+0+3`.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        let mut numbers = self.steps.iter().map(|(number, ..)| number);
        numbers.try_for_each(|number| write!(f, "+{number}"))
    }
}

/// A program, from its [`Display`](fmt::Display).
impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("`{text}` is no program, such as 17+0+3");
        let mut parts = text.split('+');
        let seed = parts.next().unwrap_or_default().parse().map_err(wrong)?;
        let numbers = parts
            .map(str::parse::<usize>)
            .collect::<Result<Vec<_>, _>>();
        let numbers = numbers.map_err(wrong)?;
        let mut program = Self::new(seed);
        program
            .steps
            .retain(|(number, ..)| numbers.contains(number));
        Ok(program)
    }
}

#[test]
fn program_survives_the_way_to_text_and_back() {
    for seed in 0..50 {
        let complete = Program::new(seed);
        for program in complete.smaller().into_iter().chain([complete]) {
            assert_eq!(program.to_string().parse(), Ok(program));
        }
    }
}
