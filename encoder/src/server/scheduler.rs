//! From texts to embeddings: what is encoded next, together with what, and who hears of the result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use laser_encoder::{Embeddings, Encoder, EncoderError, Purpose};
use laser_protocol::work::{Hash, Record, Suspicion};
use laser_protocol::{ErrorCode, Failure, MAX_TEXT_BYTES, Role};

use super::batch::{Input, cost_of_batch, encode_inputs, failure};
use super::log::log;
use super::models::{Lookup, Models};
use super::process::exit_now;
use super::queue::{Batch, Budget, INLINE_BYTES, Job, JobId, Queue, SessionId};
use super::sessions::Sessions;
use super::stats::Stats;
use super::tokens::{Done, Tokens};

/// Texts of a batch that are taken even beyond its time: smaller products waste the processor.
const MIN_BATCH: usize = 32;
/// Seconds after which no more texts of a batch are tokenized on the loop; the rest are left to the
/// next batch.
const TOKENIZE_SECONDS: f64 = 0.02;
/// Bytes of texts that are tokenized on the loop between two looks at the clock.
const TOKENIZE_BYTES: usize = 2 * INLINE_BYTES;

/// The texts that wait, and what works on them.
pub struct Scheduler {
    queue: Queue,
    /// Texts that may wait.
    limit: usize,
    tokens: Tokens,
    record: Arc<Record>,
    suspicion: Suspicion,
    /// What the last batch of a model had no time to tokenize.
    left: Vec<(JobId, u32)>,
    left_model: String,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler without texts, of which `limit` may wait. `record` has what is under work, `suspicion` under
    /// which texts the processes before have died.
    pub fn new(limit: usize, tokens: Tokens, record: Arc<Record>, suspicion: Suspicion) -> Self {
        Self {
            queue: Queue::default(),
            limit,
            tokens,
            record,
            suspicion,
            left: Vec::new(),
            left_model: String::new(),
            stats: Stats::new(),
        }
    }

    /// Counters since the start of the process.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Texts that are in no batch yet.
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// Texts that may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Queues the texts of a request.
    ///
    /// # Errors
    /// When the queue is full, there is no text, or one that processes have died of.
    pub fn submit(
        &mut self,
        session: SessionId,
        request: u64,
        model: String,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<(), Failure> {
        let waiting = self.queue.waiting();
        // A request larger than the whole queue is taken when nothing else waits.
        if waiting > 0 && waiting + texts.len() > self.limit {
            return Err(Failure::new(
                ErrorCode::Busy,
                format!("the encoder's queue is full ({waiting} texts wait)"),
                "Try again later, or raise laser.encoder_queue.",
            ));
        }
        if texts.is_empty() {
            let message = "a request without texts";
            return Err(Failure::new(ErrorCode::Protocol, message, ""));
        }
        debug_assert!(texts.iter().all(|t| t.len() <= MAX_TEXT_BYTES));
        let job = Job::new(session, request, model, purpose, texts);
        if self.suspicion.refuses() {
            let culprit = |hash: &Hash| self.suspicion.is_culprit(hash);
            // Whose text it is, is not known: it is not shown.
            if job.hashes.iter().any(culprit) {
                return Err(Failure::new(
                    ErrorCode::Internal,
                    "the encoder process ended again and again while it worked on one text alone",
                    "It is refused for ten minutes, or until settings of the encoder change; others are not \
                     affected. See the server log.",
                ));
            }
        }
        self.queue.push(job);
        Ok(())
    }

    /// Drops what a session that is gone has asked for.
    pub fn forget(&mut self, session: SessionId) {
        self.queue.forget(session);
    }

    /// Answers all jobs for a model that cannot be loaded.
    pub fn fail_model(&mut self, model: &str, failure: &Failure, sessions: &mut Sessions) {
        for job in self.queue.remove_model(model) {
            sessions.fail_job(&job, failure.clone());
        }
    }

    /// Notes an error for the status.
    pub fn note_error(&mut self, message: &str) {
        message.clone_into(&mut self.stats.last_error);
    }

    /// Hands out texts to the threads that tokenize.
    pub fn start_tokenizing(&mut self, models: &mut Models) {
        while self.tokens.idle() {
            let ready = |name: &str| models.get(name).is_some();
            let Some(piece) = self.queue.take_piece(&self.suspicion, ready) else {
                return;
            };
            let model = self.queue.job_mut(piece.job).map(|job| job.model.clone());
            let Some(model) = model.and_then(|name| models.get(&name)) else {
                return;
            };
            let (encoder, fingerprint) = (model.encoder.clone(), model.fingerprint);
            self.tokens.start(piece, encoder, fingerprint);
        }
    }

    /// Takes the tokens that threads have made since the last call.
    pub fn take_tokens(&mut self, sessions: &mut Sessions) {
        let done = self.tokens.reports();
        self.place_tokens(done, sessions);
    }

    fn place_tokens(&mut self, done: Vec<Done>, sessions: &mut Sessions) {
        for done in done {
            match done.tokens {
                Ok(tokens) => self.queue.tokenized(done.piece, tokens, done.fingerprint),
                Err(error) => {
                    if let Some(job) = self.queue.remove(done.piece.job) {
                        sessions.fail_job(&job, failure(&error, &job.model));
                    }
                }
            }
        }
    }

    /// Encodes one batch, if a model with waiting texts is loaded. Returns whether texts are left
    /// that can be encoded at once.
    pub fn encode_batch(&mut self, models: &mut Models, sessions: &mut Sessions) -> bool {
        if !self.left.is_empty() {
            match models.lookup(&self.left_model) {
                // It was dropped, or its files are being replaced.
                Lookup::Loading => {}
                Lookup::Failed(failure) => {
                    // These are in no line any more.
                    for (id, _) in std::mem::take(&mut self.left) {
                        if let Some(job) = self.queue.remove(id) {
                            sessions.fail_job(&job, failure.clone());
                        }
                    }
                    let model = std::mem::take(&mut self.left_model);
                    self.fail_model(&model, &failure, sessions);
                }
                Lookup::Ready => {
                    if let Some(model) = models.get(&self.left_model) {
                        let (encoder, fingerprint) = (model.encoder.clone(), model.fingerprint);
                        let batch = Batch {
                            model: self.left_model.clone(),
                            items: std::mem::take(&mut self.left),
                            alone: false,
                        };
                        self.encode(&encoder, fingerprint, &batch, models, sessions);
                        return self.queue.waiting() > 0 || !self.left.is_empty();
                    }
                }
            }
        }
        for name in self.queue.next_models() {
            match models.lookup(&name) {
                Lookup::Loading => continue,
                Lookup::Failed(failure) => {
                    self.fail_model(&name, &failure, sessions);
                    continue;
                }
                Lookup::Ready => {}
            }
            let Some(model) = models.get(&name) else {
                continue;
            };
            let budget = Budget {
                cost: cost_of_batch(model.seconds_per_cost),
                least: MIN_BATCH,
            };
            let encoder = model.encoder.clone();
            let fingerprint = model.fingerprint;
            if !self.left.is_empty() && self.left_model != name {
                // One model at a time has texts left.
                continue;
            }
            if let Some(batch) = self.queue.take(&name, budget, &self.suspicion) {
                self.encode(&encoder, fingerprint, &batch, models, sessions);
                return self.queue.waiting() > 0 || !self.left.is_empty();
            }
        }
        false
    }

    fn encode(
        &mut self,
        encoder: &Encoder,
        fingerprint: [u8; 32],
        batch: &Batch,
        models: &mut Models,
        sessions: &mut Sessions,
    ) {
        // Rows of one request must come from one model: if its folder was replaced between two
        // batches, the request starts over.
        let mut restarted = Vec::new();
        for &(id, _) in &batch.items {
            if let Some(job) = self.queue.job_mut(id)
                && (!job.rows.is_empty() && job.fingerprint != fingerprint
                    || job.tokens_of.is_some_and(|of| of != fingerprint))
                && !restarted.contains(&id)
            {
                restarted.push(id);
            }
        }
        for &id in &restarted {
            self.queue.restart(id);
            self.left.retain(|(job, _)| *job != id);
        }
        let items: Vec<(JobId, u32)> = batch
            .items
            .iter()
            .copied()
            .filter(|(id, _)| !restarted.contains(id))
            .collect();
        if items.is_empty() {
            return;
        }
        if batch.alone {
            // Nothing else may be to blame if the process dies now.
            let done = self.tokens.wait_for_all();
            self.place_tokens(done, sessions);
        }
        let hashes: Vec<Hash> = items.iter().filter_map(|item| self.hash(item)).collect();
        self.record.begin(0, hashes.iter().copied());
        let start = Instant::now();
        let tokenized = self.tokenize_items(encoder, &items);
        self.left.extend(&items[tokenized..]);
        self.left_model.clone_from(&batch.model);
        let items = items[..tokenized].to_vec();
        let (result, cost) = self.encode_items(encoder, &items);
        let seconds = start.elapsed().as_secs_f64();
        self.record.end(0);
        if batch.alone {
            hashes
                .iter()
                .for_each(|hash| self.suspicion.clear(&self.record, hash));
        }
        match result {
            Ok((embeddings, tokens)) => {
                self.stats.count(items.len(), tokens);
                if let Some(model) = models.get(&batch.model) {
                    // Small batches cost more for each unit; only those near the budget tell the
                    // speed of large ones, but anything is better than nothing.
                    let measured = seconds / cost as f64;
                    model.seconds_per_cost = match model.seconds_per_cost {
                        0.0 => measured,
                        old => 0.7 * old + 0.3 * measured.min(4.0 * old),
                    };
                }
                self.deliver(&items, &embeddings, fingerprint, sessions);
            }
            // Nothing would be computed on it in this process any more. The texts are not to blame: they are no longer
            // on record.
            Err(_) if encoder.device_is_lost() => {
                log("the GPU has failed: the process ends, to be started again");
                exit_now(1)
            }
            Err(failure) => self.encode_one_by_one(encoder, fingerprint, &items, failure, sessions),
        }
    }

    fn hash(&mut self, &(id, index): &(JobId, u32)) -> Option<Hash> {
        Some(self.queue.job_mut(id)?.hashes[index as usize])
    }

    /// Tokenizes texts of a batch whose tokens are not known yet, for a while. Returns how many of
    /// them can be encoded; the rest are left to the next batch. What fails is left to be tried, and
    /// reported, text by text.
    fn tokenize_items(&mut self, encoder: &Encoder, items: &[(JobId, u32)]) -> usize {
        let start = Instant::now();
        let mut at = 0;
        while at < items.len() {
            if at > 0 && start.elapsed().as_secs_f64() > TOKENIZE_SECONDS {
                break;
            }
            let first = at;
            let (mut texts, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some(&(id, index)) = items.get(at)
                && (bytes < TOKENIZE_BYTES || at == first)
            {
                if let Some(job) = self.queue.job_mut(id)
                    && job.tokens[index as usize].is_none()
                {
                    bytes += job.texts[index as usize].len();
                    let text = std::mem::take(&mut job.texts[index as usize]);
                    texts.push((job.purpose.clone(), text));
                    places.push((id, index));
                }
                at += 1;
            }
            // One that is refused leaves all of them without tokens.
            let tokens = catch_unwind(AssertUnwindSafe(|| encoder.tokenize_all(&texts)));
            let mut tokens = tokens.ok().and_then(Result::ok).map(Vec::into_iter);
            for ((id, index), (_, text)) in places.into_iter().zip(texts) {
                if let Some(job) = self.queue.job_mut(id) {
                    job.texts[index as usize] = text;
                    job.tokens[index as usize] = tokens.as_mut().and_then(Iterator::next);
                }
            }
        }
        at
    }

    /// One text of the batch made the encoder fail: each job is tried for itself, so that the
    /// others get their answers.
    fn encode_one_by_one(
        &mut self,
        encoder: &Encoder,
        fingerprint: [u8; 32],
        items: &[(JobId, u32)],
        failure: Failure,
        sessions: &mut Sessions,
    ) {
        let mut jobs: Vec<JobId> = items.iter().map(|&(id, _)| id).collect();
        jobs.sort_unstable();
        jobs.dedup();
        if let [only] = jobs[..] {
            self.note_error(&failure.message);
            log(&failure.message);
            if let Some(job) = self.queue.remove(only) {
                sessions.fail_job(&job, failure);
            }
            return;
        }
        for id in jobs {
            let own: Vec<(JobId, u32)> = items
                .iter()
                .copied()
                .filter(|&(job, _)| job == id)
                .collect();
            match self.encode_items(encoder, &own).0 {
                Ok((embeddings, tokens)) => {
                    self.stats.count(own.len(), tokens);
                    self.deliver(&own, &embeddings, fingerprint, sessions);
                }
                Err(failure) => {
                    self.encode_one_by_one(encoder, fingerprint, &own, failure, sessions);
                }
            }
        }
    }

    /// Encodes the texts of `items`; returns the embeddings with the number of tokens, and the
    /// cost of the texts as the queue counts it.
    fn encode_items(
        &mut self,
        encoder: &Encoder,
        items: &[(JobId, u32)],
    ) -> (Result<(Embeddings, u64), Failure>, usize) {
        // Tokens are moved out for the time of the call and put back, in case they are needed again.
        let mut texts = Vec::with_capacity(items.len());
        let mut name = String::new();
        for &(id, index) in items {
            texts.push(match self.queue.job_mut(id) {
                Some(job) => {
                    name.clone_from(&job.model);
                    match job.tokens[index as usize].take() {
                        Some(tokens) => Input::Tokens(tokens),
                        None => Input::Text(job.texts[index as usize].clone(), job.purpose.clone()),
                    }
                }
                None => Input::Text(String::new(), Purpose::Embed(Role::Plain)),
            });
        }
        let cost = texts.iter().map(Input::cost).sum::<usize>().max(1);
        let result = catch_unwind(AssertUnwindSafe(|| encode_inputs(encoder, &texts)))
            .unwrap_or_else(|_| Err(EncoderError::Compute("the encoder failed".into())))
            .map_err(|e| failure(&e, &name));
        let rows = result.as_ref().map_or(0, |(e, _)| e.truncated.len());
        for (&(id, index), text) in items.iter().zip(texts) {
            if let Some(job) = self.queue.job_mut(id)
                && let Input::Tokens(tokens) = text
            {
                job.tokens[index as usize] = Some(tokens);
            }
        }
        debug_assert!(result.is_err() || rows == items.len());
        (result, cost)
    }

    fn deliver(
        &mut self,
        items: &[(JobId, u32)],
        embeddings: &Embeddings,
        fingerprint: [u8; 32],
        sessions: &mut Sessions,
    ) {
        for (i, &(id, index)) in items.iter().enumerate() {
            let Some(job) = self.queue.job_mut(id) else {
                continue;
            };
            let row = embeddings.row(i);
            if row.iter().any(|v| !v.is_finite()) {
                let failure = Failure::not_finite(&job.model);
                self.note_error(&failure.message);
                if let Some(job) = self.queue.remove(id) {
                    sessions.fail_job(&job, failure);
                }
                continue;
            }
            job.fingerprint = fingerprint;
            if job.store(index, row, embeddings.truncated[i])
                && let Some(job) = self.queue.remove(id)
            {
                sessions.finish_job(&job);
            }
        }
    }
}
