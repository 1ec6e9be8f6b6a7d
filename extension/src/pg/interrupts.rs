//! Where long work lets cancels through.

/// Lets a cancel or a shutdown through; may unwind.
pub fn pause() {
    pgrx::check_for_interrupts!();
}
