//! Learning rate as a function of the step.

use serde::{Deserialize, Serialize};

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Stays at the peak.
    Constant,
    /// Falls in a straight line to `floor` at the end.
    #[default]
    Linear,
    /// Falls along half a cosine to `floor` at the end.
    Cosine,
    /// Falls with the inverse square root of the step.
    InverseSqrt,
}

/// Warm-up in a straight line from 0, then decay. All results are factors of the peak rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Steps of the warm-up.
    pub warmup_steps: u64,
    /// Shape after the warm-up.
    pub decay: Decay,
    /// Factor at the end of a linear or cosine decay.
    pub floor: f64,
    /// Factor each time the dev figure stalls, besides; 1 = none.
    pub stall_factor: f64,
    /// Evaluations without a better dev figure that are a stall.
    pub stall_evaluations: usize,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            warmup_steps: 200,
            decay: Decay::Linear,
            floor: 0.02,
            stall_factor: 1.0,
            stall_evaluations: 1,
        }
    }
}

impl Schedule {
    /// Factor of the peak rate at `step` (from 0), where `progress` is the share of the run that
    /// is over, from 0 to 1.
    pub fn factor(&self, step: u64, progress: f64) -> f64 {
        if step < self.warmup_steps {
            return (step + 1) as f64 / self.warmup_steps as f64;
        }
        let left = 1.0 - progress.clamp(0.0, 1.0);
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => self.floor + (1.0 - self.floor) * left,
            Decay::Cosine => {
                let wave = 0.5 * (1.0 - (std::f64::consts::PI * left).cos());
                self.floor + (1.0 - self.floor) * wave
            }
            Decay::InverseSqrt => {
                let start = self.warmup_steps.max(1) as f64;
                (start / (step + 1) as f64).sqrt().min(1.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_starts_at_the_peak_and_falls() {
        for decay in [
            Decay::Constant,
            Decay::Linear,
            Decay::Cosine,
            Decay::InverseSqrt,
        ] {
            let schedule = Schedule {
                warmup_steps: 10,
                decay,
                floor: 0.1,
                ..Schedule::default()
            };
            assert!((schedule.factor(0, 0.0) - 0.1).abs() < 1e-12);
            assert!((schedule.factor(9, 0.0) - 1.0).abs() < 1e-12);
            let mut last = 1.0;
            for step in 10..110 {
                let factor = schedule.factor(step, step as f64 / 110.0);
                assert!(
                    factor <= last + 1e-12 && factor >= 0.09,
                    "{decay:?} {factor}"
                );
                last = factor;
            }
            let end = schedule.factor(1000, 1.0);
            match decay {
                Decay::Constant => assert_eq!(end, 1.0),
                Decay::InverseSqrt => assert!((end - (10f64 / 1001.0).sqrt()).abs() < 1e-12),
                _ => assert!((end - 0.1).abs() < 1e-12),
            }
        }
    }
}
