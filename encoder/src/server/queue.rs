//! The queue of texts: fair between sessions, one model per batch.
//!
//! A *job* is one embed request. Sessions take turns text by text: however many texts a session
//! has queued, another session's single text is in the next batch. Inside a job, texts are taken
//! in order of length, so that batches hold texts of similar length.
//!
//! Jobs of more than [`INLINE_BYTES`] are tokenized first, in pieces for which sessions take turns as
//! well, and are queued for batches once all of their tokens are known. The others are tokenized in
//! their batch.

use std::collections::{HashMap, VecDeque};

use laser_encoder::{Purpose, Tokenized};
use laser_protocol::work::{self, BATCH_TEXTS, Hash, PIECE_TEXTS, Suspicion};

/// Identifies a session (connection).
pub type SessionId = u64;
/// Identifies a job; unique over the life of the process.
pub type JobId = u64;

/// Bytes of a job that is tokenized in its batch, on the event loop.
pub const INLINE_BYTES: usize = 1024;
/// Bytes of the texts that a thread tokenizes at a time, unless it is one text.
const PIECE_BYTES: usize = 16 << 10;

/// An embed request in progress.
pub struct Job {
    /// The session that asked.
    pub session: SessionId,
    /// The request's id within its session.
    pub request: u64,
    /// Resolved name of the model.
    pub model: String,
    /// What is asked about its texts.
    pub purpose: Purpose,
    /// At least one.
    pub texts: Vec<String>,
    /// [`work::hash`] of each text, by which the record of work knows it.
    pub hashes: Vec<Hash>,
    /// Their tokens, where they are known.
    pub tokens: Vec<Option<Tokenized>>,
    /// Fingerprint of the model whose tokens they are, if any are known.
    pub tokens_of: Option<[u8; 32]>,
    /// Rows computed so far, `texts.len()` rows of `dimensions`; empty before the first batch.
    pub rows: Vec<f32>,
    /// For each text, whether it was cut.
    pub truncated: Vec<bool>,
    /// Dimensions, known after the first batch.
    pub dimensions: usize,
    /// Fingerprint of the model that computed the rows.
    pub fingerprint: [u8; 32],
    order: Vec<u32>,
    taken: usize,
    done: usize,
    /// Texts that have been handed out to be tokenized, and those that need not be any more.
    handed_out: usize,
    tokenized: usize,
}

impl Job {
    /// A job for `texts`, of which there is at least one.
    pub fn new(
        session: SessionId,
        request: u64,
        model: String,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Self {
        let mut order: Vec<u32> = (0..texts.len() as u32).collect();
        order.sort_by_key(|&i| texts[i as usize].len());
        let truncated = vec![false; texts.len()];
        // A pair is known by both of its texts.
        let asked = match &purpose {
            Purpose::Embed(_) => model.clone(),
            Purpose::Rerank(query) => format!("{model} {:x?}", work::hash(&model, query)),
        };
        let hashes = texts.iter().map(|text| work::hash(&asked, text)).collect();
        let tokens = vec![None; texts.len()];
        Self {
            session,
            request,
            model,
            purpose,
            texts,
            hashes,
            tokens,
            tokens_of: None,
            rows: Vec::new(),
            truncated,
            dimensions: 0,
            fingerprint: [0; 32],
            order,
            taken: 0,
            done: 0,
            handed_out: 0,
            tokenized: 0,
        }
    }

    /// Whether its texts are tokenized before they are queued for batches.
    fn is_long(&self) -> bool {
        let texts: usize = self.texts.iter().map(String::len).sum();
        texts + self.purpose.bytes() * self.texts.len() > INLINE_BYTES
    }

    /// Estimated work for a text.
    fn cost(&self, index: u32) -> usize {
        match &self.tokens[index as usize] {
            Some(tokens) => tokens.ids.len() + 2,
            None => text_cost(&self.texts[index as usize], &self.purpose),
        }
    }

    /// Stores one row; returns whether the job is complete.
    pub fn store(&mut self, index: u32, row: &[f32], cut: bool) -> bool {
        let (i, d) = (index as usize, row.len());
        if self.rows.is_empty() {
            self.dimensions = d;
            self.rows = vec![0.0; self.texts.len() * d];
        }
        self.rows[i * d..(i + 1) * d].copy_from_slice(row);
        self.truncated[i] = cut;
        self.done += 1;
        self.done == self.texts.len()
    }

    /// Forgets the rows: the model was replaced between two batches of this job.
    fn restart(&mut self) {
        self.rows.clear();
        self.taken = 0;
        self.done = 0;
        self.tokens.fill(None);
        self.tokens_of = None;
        self.handed_out = 0;
        self.tokenized = 0;
    }
}

/// Texts of a job that a thread tokenizes.
pub struct Piece {
    /// The job whose texts these are; it may be gone when the tokens come.
    pub job: JobId,
    /// What is asked about them.
    pub purpose: Purpose,
    /// Their places in the job.
    pub indices: Vec<u32>,
    /// Copies of these texts.
    pub texts: Vec<String>,
    /// [`work::hash`] of each.
    pub hashes: Vec<Hash>,
}

/// Texts to encode together.
pub struct Batch {
    /// Name of the model.
    pub model: String,
    /// The texts, as places in jobs.
    pub items: Vec<(JobId, u32)>,
    /// Whether it is a text that must not share its batch.
    pub alone: bool,
}

/// How large a batch may become.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Sum of [`text_cost`] over its texts.
    pub cost: usize,
    /// Texts that are taken even beyond the cost, up to [`MAX_OVERRUN`] times of it.
    pub least: usize,
}

/// How many times the cost of a batch may be, for the sake of the least number of texts.
const MAX_OVERRUN: usize = 4;

/// Estimated work for a text: about its number of tokens.
pub fn text_cost(text: &str, purpose: &Purpose) -> usize {
    (text.len() + purpose.bytes()) / 4 + 2
}

/// Jobs that wait, by session, and whose turn it is.
#[derive(Default)]
pub struct Queue {
    jobs: HashMap<JobId, Job>,
    sessions: HashMap<SessionId, VecDeque<JobId>>,
    turn: VecDeque<SessionId>,
    /// The same for jobs that have to be tokenized first.
    raw: HashMap<SessionId, VecDeque<JobId>>,
    raw_turn: VecDeque<SessionId>,
    next_job: JobId,
    waiting: usize,
}

impl Queue {
    /// Texts that are not yet in a batch.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Adds a job.
    pub fn push(&mut self, job: Job) {
        let id = self.next_job;
        self.next_job += 1;
        self.waiting += job.texts.len();
        self.line_up(id, &job);
        self.jobs.insert(id, job);
    }

    /// Puts a job at the end of its session's line.
    fn line_up(&mut self, id: JobId, job: &Job) {
        let (lines, turn) = if job.is_long() && job.tokenized < job.texts.len() {
            (&mut self.raw, &mut self.raw_turn)
        } else {
            (&mut self.sessions, &mut self.turn)
        };
        let line = lines.entry(job.session).or_default();
        if line.is_empty() {
            turn.push_back(job.session);
        }
        line.push_back(id);
    }

    /// Takes texts to be tokenized, of the first session in turn whose next long job is for a model
    /// that `ready` knows. Suspects are left to their batch.
    pub fn take_piece(
        &mut self,
        suspicion: &Suspicion,
        mut ready: impl FnMut(&str) -> bool,
    ) -> Option<Piece> {
        for at in 0..self.raw_turn.len() {
            let session = self.raw_turn[at];
            let id = self.raw[&session][0];
            let job = self.jobs.get_mut(&id).expect("lines hold existing jobs");
            if !ready(&job.model) {
                continue;
            }
            let mut piece = Piece {
                job: id,
                purpose: job.purpose.clone(),
                indices: Vec::new(),
                texts: Vec::new(),
                hashes: Vec::new(),
            };
            let mut bytes = 0;
            while let Some(&index) = job.order.get(job.handed_out) {
                let (text, hash) = (&job.texts[index as usize], job.hashes[index as usize]);
                if suspicion.is_suspect(&hash) {
                    job.handed_out += 1;
                    job.tokenized += 1;
                    continue;
                }
                bytes += text.len() + job.purpose.bytes();
                let full = bytes > PIECE_BYTES || piece.texts.len() >= PIECE_TEXTS;
                if full && !piece.texts.is_empty() {
                    break;
                }
                piece.indices.push(index);
                piece.texts.push(text.clone());
                piece.hashes.push(hash);
                job.handed_out += 1;
            }
            let (complete, tokenized) = (
                job.handed_out == job.texts.len(),
                job.tokenized == job.texts.len(),
            );
            self.raw_turn.remove(at);
            let line = self.raw.get_mut(&session).expect("it had a job");
            if complete {
                line.pop_front();
            }
            if line.is_empty() {
                self.raw.remove(&session);
            } else {
                self.raw_turn.push_back(session);
            }
            if tokenized {
                self.enter(id);
            }
            if !piece.texts.is_empty() {
                return Some(piece);
            }
            // Only suspects were left of that job: the next turn.
            return self.take_piece(suspicion, ready);
        }
        None
    }

    /// Takes up the tokens of a piece.
    pub fn tokenized(&mut self, piece: Piece, tokens: Vec<Tokenized>, fingerprint: [u8; 32]) {
        let Some(job) = self.jobs.get_mut(&piece.job) else {
            return;
        };
        if job.handed_out == 0 {
            // The job was started over meanwhile.
            return;
        }
        if *job.tokens_of.get_or_insert(fingerprint) != fingerprint {
            return self.restart(piece.job);
        }
        // A piece from before the job was started over may bring some for the second time.
        let before = job.tokenized;
        for (index, tokens) in piece.indices.into_iter().zip(tokens) {
            let place = &mut job.tokens[index as usize];
            job.tokenized += usize::from(place.is_none());
            place.get_or_insert(tokens);
        }
        if job.tokenized > before && job.tokenized == job.texts.len() {
            self.enter(piece.job);
        }
    }

    /// A long job all of whose tokens are known may be taken in batches.
    fn enter(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            self.line_up(id, &job);
            self.jobs.insert(id, job);
        }
    }

    /// A job that was handed out in a batch and still exists.
    pub fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id)
    }

    /// Removes a job, complete or not.
    pub fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.waiting -= job.texts.len() - job.taken;
        self.leave_lines(id, job.session);
        Some(job)
    }

    /// Starts a job over, because its rows so far came from another model.
    pub fn restart(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        self.waiting += job.taken;
        let session = job.session;
        job.restart();
        self.leave_lines(id, session);
        self.enter(id);
    }

    /// Drops everything of a session that is gone.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.turn.retain(|&s| s != session);
        self.raw.remove(&session);
        self.raw_turn.retain(|&s| s != session);
        let waiting = &mut self.waiting;
        self.jobs.retain(|_, job| {
            if job.session == session {
                *waiting -= job.texts.len() - job.taken;
            }
            job.session != session
        });
    }

    /// Takes all jobs of a model out of the queue and returns them, to be answered with its failure.
    pub fn remove_model(&mut self, model: &str) -> Vec<Job> {
        let ids: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, j)| j.model == model)
            .map(|(&id, _)| id)
            .collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Names of the models that the sessions' next jobs ask for, in the order of their turns.
    pub fn next_models(&self) -> Vec<String> {
        let mut models: Vec<String> = Vec::new();
        let next = (self.turn.iter().map(|session| &self.sessions[session]))
            .chain(self.raw_turn.iter().map(|session| &self.raw[session]));
        for line in next {
            if let Some(job) = line.front().and_then(|id| self.jobs.get(id))
                && !models.contains(&job.model)
            {
                models.push(job.model.clone());
            }
        }
        models
    }

    /// Takes the next batch for `model`: one text of each session in turn, until the budget is
    /// used up. A suspect is a batch of its own. `None` if no session's next job asks for the model.
    pub fn take(&mut self, model: &str, budget: Budget, suspicion: &Suspicion) -> Option<Batch> {
        let mut items = Vec::new();
        let mut cost = 0;
        let mut alone = false;
        // Sessions whose next job is for another model keep their place in the turn.
        let mut skipped = VecDeque::new();
        while let Some(session) = self.turn.pop_front() {
            let line = self
                .sessions
                .get_mut(&session)
                .expect("sessions in turn have a line");
            let id = *line.front().expect("sessions in turn have jobs");
            let job = self.jobs.get_mut(&id).expect("lines hold existing jobs");
            if job.model != model {
                skipped.push_back(session);
                continue;
            }
            let index = job.order[job.taken];
            let add = job.cost(index);
            let suspect = suspicion.is_suspect(&job.hashes[index as usize]);
            let full = cost + add > budget.cost && items.len() >= budget.least;
            let crowded =
                cost + add > budget.cost.saturating_mul(MAX_OVERRUN) || items.len() >= BATCH_TEXTS;
            if !items.is_empty() && (full || crowded || suspect || alone) {
                self.turn.push_front(session);
                break;
            }
            cost += add;
            alone = suspect;
            items.push((id, index));
            job.taken += 1;
            self.waiting -= 1;
            if job.taken == job.texts.len() {
                line.pop_front();
            }
            if line.is_empty() {
                self.sessions.remove(&session);
            } else {
                self.turn.push_back(session);
            }
        }
        while let Some(session) = skipped.pop_back() {
            self.turn.push_front(session);
        }
        (!items.is_empty()).then(|| Batch {
            model: model.to_owned(),
            items,
            alone,
        })
    }

    fn leave_lines(&mut self, id: JobId, session: SessionId) {
        for (lines, turn) in [
            (&mut self.sessions, &mut self.turn),
            (&mut self.raw, &mut self.raw_turn),
        ] {
            if let Some(line) = lines.get_mut(&session) {
                line.retain(|&j| j != id);
                if line.is_empty() {
                    lines.remove(&session);
                    turn.retain(|&s| s != session);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laser_protocol::Role;
    use proptest::prelude::*;

    const PLAIN: Purpose = Purpose::Embed(Role::Plain);

    fn job(session: SessionId, request: u64, n: usize) -> Job {
        Job::new(
            session,
            request,
            "m".into(),
            PLAIN,
            vec!["four".to_owned(); n],
        )
    }

    const SMALL: Budget = Budget { cost: 30, least: 1 };

    /// A batch when nothing is suspect, with what is to be tokenized before.
    fn take(queue: &mut Queue, model: &str, budget: Budget) -> Option<Batch> {
        let nobody = Suspicion::default();
        while let Some(piece) = queue.take_piece(&nobody, |_| true) {
            let tokens = tokens(&piece);
            queue.tokenized(piece, tokens, [7; 32]);
        }
        queue.take(model, budget, &nobody)
    }

    fn tokens(piece: &Piece) -> Vec<Tokenized> {
        let count = |text: &String| Tokenized {
            ids: vec![0; text.len() / 4],
            truncated: false,
        };
        piece.texts.iter().map(count).collect()
    }

    #[test]
    fn a_single_text_is_not_behind_a_large_array() {
        let mut queue = Queue::default();
        for request in 0..20 {
            queue.push(job(1, request, 500));
        }
        queue.push(job(2, 0, 1));
        let batch = take(&mut queue, "m", SMALL).unwrap();
        let sessions: Vec<SessionId> = batch
            .items
            .iter()
            .map(|(id, _)| queue.job_mut(*id).unwrap().session)
            .collect();
        assert!(sessions.contains(&2));
        assert_eq!(batch.items.len(), 10);
    }

    #[test]
    fn sessions_share_batches_evenly() {
        let mut queue = Queue::default();
        for session in 0..4 {
            queue.push(job(session, 0, 100));
        }
        let mut seen = [0; 4];
        for _ in 0..8 {
            for (id, _) in take(&mut queue, "m", SMALL).unwrap().items {
                seen[queue.job_mut(id).unwrap().session as usize] += 1;
            }
        }
        assert_eq!(seen, [20; 4]);
    }

    #[test]
    fn one_text_beyond_the_budget_still_makes_a_batch() {
        let mut queue = Queue::default();
        queue.push(Job::new(1, 0, "m".into(), PLAIN, vec!["x".repeat(10_000)]));
        assert_eq!(take(&mut queue, "m", SMALL).unwrap().items.len(), 1);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn long_texts_do_not_wait_for_a_crowd() {
        let mut queue = Queue::default();
        for session in 0..32 {
            queue.push(Job::new(
                session,
                0,
                "m".into(),
                PLAIN,
                vec!["x".repeat(200)],
            ));
        }
        let budget = Budget {
            cost: 60,
            least: 32,
        };
        let batch = take(&mut queue, "m", budget).unwrap();
        assert_eq!(batch.items.len(), 4);
    }

    #[test]
    fn a_gone_session_leaves_nothing() {
        let mut queue = Queue::default();
        queue.push(job(1, 0, 50));
        queue.push(job(1, 1, 50));
        queue.push(job(2, 0, 3));
        take(&mut queue, "m", SMALL);
        queue.forget(1);
        let mut left = 0;
        while let Some(batch) = take(&mut queue, "m", SMALL) {
            for (id, _) in batch.items {
                assert_eq!(queue.job_mut(id).unwrap().session, 2);
                left += 1;
            }
        }
        assert!(left <= 3);
        assert_eq!(queue.waiting(), 0);
        assert!(queue.next_models().is_empty());
    }

    #[test]
    fn batches_hold_one_model() {
        let mut queue = Queue::default();
        queue.push(Job::new(1, 0, "a".into(), PLAIN, vec!["x".into()]));
        queue.push(Job::new(2, 0, "b".into(), PLAIN, vec!["y".into()]));
        assert_eq!(queue.next_models(), ["a", "b"]);
        assert_eq!(take(&mut queue, "b", SMALL).unwrap().items.len(), 1);
        assert_eq!(queue.next_models(), ["a"]);
        assert!(take(&mut queue, "b", SMALL).is_none());
        assert_eq!(take(&mut queue, "a", SMALL).unwrap().items.len(), 1);
    }

    #[test]
    fn sessions_take_turns_to_be_tokenized() {
        let mut queue = Queue::default();
        let long = || vec!["x".repeat(9_000); 5];
        queue.push(Job::new(1, 0, "m".into(), PLAIN, long()));
        queue.push(Job::new(2, 0, "m".into(), PLAIN, long()));
        queue.push(Job::new(3, 0, "other".into(), PLAIN, long()));
        let nobody = Suspicion::default();
        let mut pieces = Vec::new();
        while let Some(piece) = queue.take_piece(&nobody, |model| model == "m") {
            assert_eq!(piece.texts.len(), 1);
            pieces.push(piece);
        }
        let jobs: Vec<JobId> = pieces.iter().map(|p| p.job).collect();
        assert_eq!(jobs, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(queue.waiting(), 15);
        // Nothing is encoded before all tokens of its job are known.
        assert!(queue.take("m", SMALL, &nobody).is_none());
        for piece in pieces {
            let tokens = tokens(&piece);
            queue.tokenized(piece, tokens, [7; 32]);
        }
        assert_eq!(queue.next_models(), ["m", "other"]);
        for _ in 0..10 {
            assert_eq!(queue.take("m", SMALL, &nobody).unwrap().items.len(), 1);
        }
        assert!(queue.take("m", SMALL, &nobody).is_none());
        queue.forget(3);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn tokens_of_two_models_are_not_mixed() {
        let mut queue = Queue::default();
        let nobody = Suspicion::default();
        queue.push(Job::new(
            1,
            0,
            "m".into(),
            PLAIN,
            vec!["x".repeat(9_000); 2],
        ));
        let piece = |queue: &mut Queue| queue.take_piece(&nobody, |_| true).unwrap();
        let (first, second) = (piece(&mut queue), piece(&mut queue));
        let known = tokens(&first);
        queue.tokenized(first, known.clone(), [1; 32]);
        queue.tokenized(second, known.clone(), [2; 32]);
        assert!(queue.take("m", SMALL, &nobody).is_none());
        for _ in 0..2 {
            let piece = piece(&mut queue);
            queue.tokenized(piece, known.clone(), [2; 32]);
        }
        assert!(queue.take("m", SMALL, &nobody).is_some());
    }

    #[test]
    fn suspects_are_batches_of_their_own() {
        let record = tempfile::tempfile().unwrap();
        let open = || work::Record::open(Some(record.try_clone().unwrap()), false);
        let texts: Vec<String> = (0..6).map(|i| format!("text {i}")).collect();
        let suspects = [work::hash("m", "text 2"), work::hash("m", "text 3")];
        open().0.begin(0, suspects.into_iter());
        let suspicion = open().1;
        let mut queue = Queue::default();
        queue.push(Job::new(1, 0, "m".into(), PLAIN, texts));
        let mut sizes = Vec::new();
        while let Some(batch) = queue.take("m", SMALL, &suspicion) {
            sizes.push((batch.items.len(), batch.alone));
        }
        assert_eq!(sizes, [(2, false), (1, true), (1, true), (2, false)]);
        // Nor are they tokenized beside others.
        let long = vec!["x".repeat(9_000), "text 2".into(), "text 3".into()];
        queue.push(Job::new(1, 1, "m".into(), PLAIN, long));
        let piece = queue.take_piece(&suspicion, |_| true).unwrap();
        assert_eq!(piece.texts.len(), 1);
        assert!(queue.take_piece(&suspicion, |_| true).is_none());
        let known = tokens(&piece);
        queue.tokenized(piece, known, [1; 32]);
        assert!(queue.take("m", SMALL, &suspicion).unwrap().alone);
    }

    proptest! {
        /// Whatever the order of events, every text of a surviving job is handed out exactly once
        /// and the count of waiting texts stays right.
        #[test]
        fn every_text_once(sizes in proptest::collection::vec((0u64..4, 1usize..20), 1..12),
                           cost in 3usize..60, gone in 0u64..5) {
            let mut queue = Queue::default();
            let mut expected = 0;
            for (i, &(session, n)) in sizes.iter().enumerate() {
                queue.push(job(session, i as u64, n));
                if session != gone {
                    expected += n;
                }
            }
            queue.forget(gone);
            prop_assert_eq!(queue.waiting(), expected);
            let mut complete = 0;
            let mut seen = 0;
            while let Some(batch) = take(&mut queue, "m", Budget { cost, least: 1 }) {
                for (id, index) in batch.items {
                    seen += 1;
                    if queue.job_mut(id).unwrap().store(index, &[1.0, 2.0], false) {
                        let job = queue.remove(id).unwrap();
                        prop_assert!(job.rows.chunks(2).all(|r| r == [1.0, 2.0]));
                        complete += 1;
                    }
                }
            }
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(complete, sizes.iter().filter(|s| s.0 != gone).count());
            prop_assert_eq!(queue.waiting(), 0);
        }
    }
}
