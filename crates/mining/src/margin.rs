//! Margin functions (Artetxe & Schwenk 2019, section 3, equations 2 to 4).

use std::fmt;
use std::str::FromStr;

/// How the cosine of a pair is weighed against the neighbourhoods of its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Margin {
    /// The cosine itself.
    Absolute,
    /// The cosine minus the mean of the two neighbourhood means.
    Distance,
    /// The cosine divided by the mean of the two neighbourhood means.
    Ratio,
}

impl Margin {
    /// All margins.
    pub const ALL: [Margin; 3] = [Margin::Absolute, Margin::Distance, Margin::Ratio];

    /// The score of a pair with the given cosine, whose sides have the given mean cosines to
    /// their k nearest neighbours.
    ///
    /// The ratio follows the formula literally: negative means turn its sign, and it is NaN for
    /// 0 / 0; a pair with a NaN score is never selected.
    pub fn score(self, cosine: f64, forward_mean: f64, backward_mean: f64) -> f64 {
        let neighbourhood = (forward_mean + backward_mean) / 2.0;
        match self {
            Margin::Absolute => cosine,
            Margin::Distance => cosine - neighbourhood,
            Margin::Ratio => cosine / neighbourhood,
        }
    }

    /// The name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Margin::Absolute => "absolute",
            Margin::Distance => "distance",
            Margin::Ratio => "ratio",
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Margin {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Margin::ALL
            .into_iter()
            .find(|margin| margin.name() == name)
            .ok_or_else(|| {
                let known = Margin::ALL.map(Margin::name).join(", ");
                format!("unknown margin \"{name}\", known are {known}")
            })
    }
}
