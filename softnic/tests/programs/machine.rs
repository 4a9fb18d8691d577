//! The course of a program.

use softnic::{Fabric, When};
use verbs::{RemoteToken, error::PostError, op};

use crate::{
    end::{BUFS, Contents, End, LEN, NUMBER, Work, bring_up},
    program::{Kind, Posting, Program, Step},
};

/// Maximum number of steps of the fabric at once: receivers that are not ready are retried for ever.
const MAX_FABRIC_STEPS: u64 = 400;

/// Error number of failed calls; no part of softnic fails with this number by itself.
const ERRNO: i32 = libc::EDQUOT;

/// Calls a post with the request of a kind. The post's error is the refused request; the result's is the work.
macro_rules! with_request {
    ($kind:expr, $work:expr, $token:expr, |$request:ident| $post:expr) => {{
        let (kind, work, token): (Kind, Work, RemoteToken) = ($kind, $work, $token);
        match kind {
            Kind::Send => {
                let $request = op::Send::new(work);
                $post.map_err(|refused| refused.into_work())
            }
            Kind::SendImm => {
                let imm = u32::try_from(work.context).unwrap();
                let $request = op::Send::new(work).imm_data(imm);
                $post.map_err(|refused| refused.into_work())
            }
            Kind::Write => {
                let $request = op::Write::new(work, token);
                $post.map_err(|refused| refused.into_work())
            }
            Kind::Read => {
                let $request = op::Read::new(work, token);
                $post.map_err(|refused| refused.into_work())
            }
            Kind::Add => {
                let $request = op::FetchAdd::new(work, token, 1);
                $post.map_err(|refused| refused.into_work())
            }
        }
    }};
}

/// The request of a refused post: the effect of each of softnic's failures is proven.
pub(crate) fn unposted<R>(refused: PostError<R>) -> R {
    refused.value.expect("softnic has no refused request")
}

/// Counts of all programs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    posted: u64,
    refused: u64,
    completions: u64,
    messages: u64,
    resizes: u64,
    failed_resizes: u64,
    overruns: u64,
    pub(crate) windows: u64,
    pub(crate) scopes: u64,
    pub(crate) thaws: u64,
    reconnects: u64,
}

impl Tally {
    /// Whether each kind of step had an effect.
    pub(crate) fn is_complete(&self) -> bool {
        let Self {
            posted,
            refused,
            completions,
            messages,
            resizes,
            failed_resizes,
            overruns,
            windows,
            scopes,
            thaws,
            reconnects,
        } = *self;
        let posts = [posted, refused, completions, messages, overruns];
        let objects = [resizes, failed_resizes, reconnects, windows, scopes, thaws];
        posts.into_iter().chain(objects).min() > Some(0)
    }
}

/// A request: its kind, its buffer, and its target.
type Planned = (Kind, Work, RemoteToken);

pub(crate) struct Machine<'t> {
    pub(crate) ends: [End; 2],
    pub(crate) contents: Contents,
    pub(crate) tally: &'t mut Tally,
    /// The fabric. The last field, so dropped last: it reports objects that are left.
    pub(crate) fabric: Fabric,
}

impl<'t> Machine<'t> {
    /// Runs a program.
    ///
    /// # Panics
    /// If the memory of the program changes.
    pub(crate) fn run(program: &Program, tally: &'t mut Tally) {
        let fabric = Fabric::manual(program.seed);
        let hosts = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
        let mut contents = Contents::default();
        let mut index = 0..;
        let ends = hosts.map(|host| End::new(host, index.next().unwrap(), &mut contents));
        let mut this = Self {
            ends,
            contents,
            tally,
            fabric,
        };
        this.connect();
        for (_, host, step) in &program.steps {
            this.step(*host, *step);
            this.check();
        }
        this.end();
    }

    fn step(&mut self, host: usize, step: Step) {
        match step {
            Step::Post(posting, kinds, count) => self.post(host, posting, kinds, count),
            Step::Receive(count, together) => self.receive(host, count, together),
            Step::Overrun(kind) => self.overrun(host, kind),
            Step::Run(steps) => run(&self.fabric, steps.into()),
            Step::Poll(dropping) => {
                let polled = self.ends[host].poll(dropping, &mut self.contents);
                self.tally.completions += polled as u64;
            }
            Step::Resize(entries) => {
                let end = &mut self.ends[host];
                let resized = end.cq.resize(entries);
                self.tally.resizes += u64::from(resized.is_ok());
                let has_failed = |error: &verbs::Error| error.raw_os_error() == Some(ERRNO);
                if resized.as_ref().is_err_and(has_failed) {
                    end.is_cq_failed = true;
                    self.tally.failed_resizes += 1;
                }
            }
            Step::Fail(call, one_in) => {
                let end = &mut self.ends[host];
                let failing = end.host.fail(call, When::OneIn(one_in), ERRNO);
                end.failing.push(failing);
            }
            Step::Heal => self.heal(),
            Step::Window => self.window(host),
            Step::Scope => self.scope(host),
            Step::Thaw => self.thaw(host),
            Step::Link(true) => self.fabric.link_up(&self.ends[host].host),
            Step::Link(false) => self.fabric.link_down(&self.ends[host].host),
            // May fail on request.
            Step::ToError => drop(self.ends[host].qp.as_mut().unwrap().to_error()),
            Step::Reconnect => {
                self.heal();
                self.destroy();
                self.ends.iter_mut().for_each(End::restore_cq);
                self.connect();
                self.tally.reconnects += 1;
            }
        }
    }

    fn check(&self) {
        self.ends.iter().for_each(|end| end.check(&self.contents));
    }

    pub(crate) fn heal(&mut self) {
        self.ends.iter_mut().for_each(|end| end.failing.clear());
    }

    /// Connects new queue pairs.
    fn connect(&mut self) {
        let qps = self.ends.each_ref().map(End::create_qp);
        let nums = qps.each_ref().map(|qp| qp.qp_num());
        for (index, qp) in qps.into_iter().enumerate() {
            let peer = (self.ends[1 - index].gid, nums[1 - index]);
            self.ends[index].qp = Some(bring_up(qp, peer));
        }
    }

    /// Destroys the queue pairs, and keeps the buffers in flight.
    fn destroy(&mut self) {
        for end in &mut self.ends {
            let qp = end.qp.take().unwrap();
            let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
            let works = leftover.send.into_iter().chain(leftover.receive);
            works.for_each(|work| end.keep(work.work, &mut self.contents));
        }
    }

    /// A token of a slot of the peer of `host`, and the number of the slot.
    fn slot(&self, host: usize, number: u64) -> (RemoteToken, usize) {
        let slot = 2 * (number % 3) as usize;
        let region = &self.ends[1 - host].region;
        (region.slice(slot * LEN..(slot + 1) * LEN).token(), slot)
    }

    fn numbers(&self, host: usize) -> RemoteToken {
        let region = &self.ends[1 - host].region;
        region.slice(NUMBER * LEN..NUMBER * LEN + 8).token()
    }

    /// Takes buffers for requests of these kinds, in turn, with the tokens of their targets.
    fn requests(&mut self, host: usize, kinds: [Kind; 3], count: usize) -> Vec<Planned> {
        let mut requests = Vec::new();
        for kind in kinds.into_iter().cycle().take(count) {
            let len = match kind {
                Kind::Send | Kind::SendImm => 16 + count * 8,
                Kind::Write => LEN,
                Kind::Read => LEN - 1,
                Kind::Add => 8,
            };
            let Some(work) = self.ends[host].take(len) else {
                break;
            };
            let (token, slot) = self.slot(host, work.context);
            match kind {
                Kind::Send | Kind::SendImm => self.contents.send(&work),
                Kind::Write => self.contents.write(work.context, 1 - host, slot),
                Kind::Read | Kind::Add => {}
            }
            let token = match kind {
                Kind::Add => self.numbers(host),
                _ => token,
            };
            requests.push((kind, work, token));
        }
        requests
    }

    fn post(&mut self, host: usize, posting: Posting, kinds: [Kind; 3], count: usize) {
        let requests = self.requests(host, kinds, count);
        let posted = requests.len();
        let end = &mut self.ends[host];
        let qp = end.qp.as_mut().unwrap();
        let mut refused: Vec<Work> = Vec::new();
        match posting {
            Posting::Single => {
                for (kind, work, token) in requests {
                    let post = with_request!(kind, work, token, |request| qp
                        .post(request)
                        .map_err(unposted));
                    refused.extend(post.err());
                }
            }
            Posting::Batch | Posting::Forgotten => {
                let mut batch = qp.batch();
                for (kind, work, token) in requests {
                    let push = with_request!(kind, work, token, |request| batch
                        .push(request)
                        .map_err(|refused| refused.value));
                    refused.extend(push.err());
                }
                if posting == Posting::Forgotten {
                    end.dropped += batch.len();
                    drop(batch);
                } else if let Err(error) = batch.post() {
                    refused.extend(error.value);
                }
            }
            Posting::Extended => {
                let mut batch = qp.extended_batch().unwrap();
                for (kind, work, token) in requests {
                    let push = with_request!(kind, work, token, |request| batch
                        .push(request)
                        .map_err(|refused| refused.value));
                    refused.extend(push.err());
                }
                if let Err(error) = batch.post() {
                    refused.extend(error.value);
                }
            }
        }
        self.tally.posted += (posted - refused.len()) as u64;
        self.tally.refused += refused.len() as u64;
        self.ends[host].refused(refused, &mut self.contents);
    }

    fn receive(&mut self, host: usize, count: usize, together: bool) {
        let end = &mut self.ends[host];
        let works: Vec<Work> = (0..count).filter_map(|_| end.take(LEN)).collect();
        let qp = end.qp.as_mut().unwrap();
        let mut refused: Vec<Work> = Vec::new();
        if together {
            let mut batch = qp.recv_batch();
            for work in works {
                refused.extend(batch.push(work).err().map(|refused| refused.value));
            }
            if let Err(error) = batch.post() {
                refused.extend(error.value);
            }
        } else {
            for work in works {
                refused.extend(qp.post_recv(work).map_err(unposted).err());
            }
        }
        end.refused(refused, &mut self.contents);
    }

    /// A request of a buffer that is longer than its token: the slot behind is a guard.
    fn overrun(&mut self, host: usize, kind: Kind) {
        let Some(work) = self.ends[host].take(LEN) else {
            return;
        };
        let (token, _) = self.slot(host, work.context);
        let short = token.slice(LEN as u64 - 8..LEN as u64).unwrap();
        let qp = self.ends[host].qp.as_mut().unwrap();
        let posted = with_request!(kind, work, short, |request| qp
            .post(request)
            .map_err(unposted));
        self.tally.overruns += 1;
        if let Err(work) = posted {
            self.ends[host].refused(vec![work], &mut self.contents);
        }
    }

    /// Ends the program: all requests complete, and all buffers are here.
    fn end(mut self) {
        self.heal();
        for end in &mut self.ends {
            self.fabric.link_up(&end.host);
            end.qp.as_mut().unwrap().to_error().unwrap();
        }
        self.settle();
        for index in 0..2 {
            while self.ends[index].poll(0, &mut self.contents) > 0 {}
            let end = &self.ends[index];
            // Without completions, the destruction returns the work.
            if end.is_cq_failed {
                continue;
            }
            let qp = end.qp.as_ref().unwrap();
            let in_flight = qp.send_queue().in_flight() + qp.receive_queue().in_flight();
            assert!(
                in_flight <= end.dropped,
                "{in_flight} requests without a completion, {} dropped",
                end.dropped
            );
        }
        self.destroy();
        self.check();
        self.tally.messages += self.contents.messages;
        for end in &self.ends {
            let buffers = end.owned.len();
            assert!(
                buffers <= BUFS && buffers + end.dropped >= BUFS,
                "{buffers} of {BUFS} buffers, {} completions dropped",
                end.dropped
            );
        }
    }

    /// Lets the fabric run until nothing is pending.
    pub(crate) fn settle(&self) {
        run(&self.fabric, MAX_FABRIC_STEPS);
    }
}

/// Lets a fabric take a number of steps, or fewer until nothing is pending.
pub(crate) fn run(fabric: &Fabric, steps: u64) {
    (0..steps).all(|_| fabric.step());
}
