//! The queue of texts: fair between sessions, one model per batch.
//!
//! A *job* is one embed request. Sessions take turns text by text: however many texts a session
//! has queued, another session's single text is in the next batch. Inside a job, texts are taken
//! in order of length, so that batches hold texts of similar length.

use std::collections::{HashMap, VecDeque};

/// Identifies a session (connection).
pub type SessionId = u64;
/// Identifies a job; unique over the life of the process.
pub type JobId = u64;

/// An embed request in progress.
pub struct Job {
    /// The session that asked.
    pub session: SessionId,
    /// The request's id within its session.
    pub request: u64,
    /// Resolved name of the model.
    pub model: String,
    /// The texts.
    pub texts: Vec<String>,
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
}

impl Job {
    /// A job for `texts`, of which there is at least one.
    pub fn new(session: SessionId, request: u64, model: String, texts: Vec<String>) -> Self {
        let mut order: Vec<u32> = (0..texts.len() as u32).collect();
        order.sort_by_key(|&i| texts[i as usize].len());
        let truncated = vec![false; texts.len()];
        Self {
            session,
            request,
            model,
            texts,
            rows: Vec::new(),
            truncated,
            dimensions: 0,
            fingerprint: [0; 32],
            order,
            taken: 0,
            done: 0,
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
    }
}

/// Texts to encode together.
pub struct Batch {
    /// Name of the model.
    pub model: String,
    /// The texts, as places in jobs.
    pub items: Vec<(JobId, u32)>,
}

/// How large a batch may become.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Sum of [`text_cost`] over its texts.
    pub cost: usize,
    /// Texts that are taken even beyond the cost, up to [`CROWDED`] times of it.
    pub least: usize,
}

/// How many times the cost of a batch may be, for the sake of the least number of texts.
const CROWDED: usize = 4;

/// Estimated work for a text: about its number of tokens.
pub fn text_cost(text: &str) -> usize {
    text.len() / 4 + 2
}

/// All jobs that wait.
#[derive(Default)]
pub struct Queue {
    jobs: HashMap<JobId, Job>,
    sessions: HashMap<SessionId, VecDeque<JobId>>,
    turn: VecDeque<SessionId>,
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
        let line = self.sessions.entry(job.session).or_default();
        if line.is_empty() {
            self.turn.push_back(job.session);
        }
        line.push_back(id);
        self.jobs.insert(id, job);
    }

    /// A job that was handed out in a batch and still exists.
    pub fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id)
    }

    /// Removes a job, complete or not.
    pub fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.waiting -= job.texts.len() - job.taken;
        if let Some(line) = self.sessions.get_mut(&job.session) {
            line.retain(|&j| j != id);
            self.drop_idle(job.session);
        }
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
        let line = self.sessions.entry(session).or_default();
        if line.is_empty() {
            self.turn.push_back(session);
        }
        if !line.contains(&id) {
            line.push_front(id);
        }
    }

    /// Drops everything of a session that is gone.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.turn.retain(|&s| s != session);
        let waiting = &mut self.waiting;
        self.jobs.retain(|_, job| {
            if job.session == session {
                *waiting -= job.texts.len() - job.taken;
            }
            job.session != session
        });
    }

    /// Removes all jobs of a model.
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
        for session in &self.turn {
            if let Some(job) = self.sessions[session]
                .front()
                .and_then(|id| self.jobs.get(id))
                && !models.contains(&job.model)
            {
                models.push(job.model.clone());
            }
        }
        models
    }

    /// Takes the next batch for `model`: one text of each session in turn, until the budget is
    /// used up. `None` if no session's next job asks for it.
    pub fn take(&mut self, model: &str, budget: Budget) -> Option<Batch> {
        let mut items = Vec::new();
        let mut cost = 0;
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
            let add = text_cost(&job.texts[index as usize]);
            let full = cost + add > budget.cost && items.len() >= budget.least;
            let crowded = cost + add > budget.cost.saturating_mul(CROWDED);
            if !items.is_empty() && (full || crowded) {
                self.turn.push_front(session);
                break;
            }
            cost += add;
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
        })
    }

    fn drop_idle(&mut self, session: SessionId) {
        if self.sessions.get(&session).is_some_and(VecDeque::is_empty) {
            self.sessions.remove(&session);
            self.turn.retain(|&s| s != session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(session: SessionId, request: u64, n: usize) -> Job {
        Job::new(session, request, "m".into(), vec!["four".to_owned(); n])
    }

    const SMALL: Budget = Budget { cost: 30, least: 1 };

    #[test]
    fn a_single_text_is_not_behind_a_large_array() {
        let mut queue = Queue::default();
        for request in 0..20 {
            queue.push(job(1, request, 500));
        }
        queue.push(job(2, 0, 1));
        let batch = queue.take("m", SMALL).unwrap();
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
            for (id, _) in queue.take("m", SMALL).unwrap().items {
                seen[queue.job_mut(id).unwrap().session as usize] += 1;
            }
        }
        assert_eq!(seen, [20; 4]);
    }

    #[test]
    fn one_text_beyond_the_budget_still_makes_a_batch() {
        let mut queue = Queue::default();
        queue.push(Job::new(1, 0, "m".into(), vec!["x".repeat(10_000)]));
        assert_eq!(queue.take("m", SMALL).unwrap().items.len(), 1);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn long_texts_do_not_wait_for_a_crowd() {
        let mut queue = Queue::default();
        for session in 0..32 {
            queue.push(Job::new(session, 0, "m".into(), vec!["x".repeat(200)]));
        }
        let batch = queue
            .take(
                "m",
                Budget {
                    cost: 60,
                    least: 32,
                },
            )
            .unwrap();
        assert_eq!(batch.items.len(), 4);
    }

    #[test]
    fn a_gone_session_leaves_nothing() {
        let mut queue = Queue::default();
        queue.push(job(1, 0, 50));
        queue.push(job(1, 1, 50));
        queue.push(job(2, 0, 3));
        queue.take("m", SMALL);
        queue.forget(1);
        let mut left = 0;
        while let Some(batch) = queue.take("m", SMALL) {
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
        queue.push(Job::new(1, 0, "a".into(), vec!["x".into()]));
        queue.push(Job::new(2, 0, "b".into(), vec!["y".into()]));
        assert_eq!(queue.next_models(), ["a", "b"]);
        assert_eq!(queue.take("b", SMALL).unwrap().items.len(), 1);
        assert_eq!(queue.next_models(), ["a"]);
        assert!(queue.take("b", SMALL).is_none());
        assert_eq!(queue.take("a", SMALL).unwrap().items.len(), 1);
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
            while let Some(batch) = queue.take("m", Budget { cost, least: 1 }) {
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
