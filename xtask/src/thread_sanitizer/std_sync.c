// SPDX-License-Identifier: MIT
// Tells ThreadSanitizer what the functions of Rust's standard library order.
//
// The library comes built without the sanitizer. What is generic or inlined is built with whoever
// uses it and is seen: a lock that is free, a lock's release, channels. What lies in the library is
// not: these functions, whose calls the linker leads here (--wrap). Each calls the real one and
// says, as ThreadSanitizer's own interceptors do for the C library, which thread has to be behind
// which. Nothing is suppressed: two accesses that no lock and no atomic orders are reported.
//
// The names are the library's, with its hash: thread_sanitizer.rs looks them up and defines them
// here as text. All take and return machine words; six are passed on, whatever they are.
#include <stdint.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

typedef uintptr_t Word;
#define WORDS Word a, Word b, Word c, Word d, Word e, Word f
#define FUNCTION(name, symbol)                  \
  Word real_##name(WORDS) __asm__("__real_" symbol); \
  Word wrap_##name(WORDS) __asm__("__wrap_" symbol); \
  Word wrap_##name(WORDS)
#define REAL(name) real_##name(a, b, c, d, e, f)

static void acquire(Word address) { __tsan_acquire((void *)address); }
static void release(Word address) { __tsan_release((void *)address); }

// A lock that was not free: what its last holder released is behind us.
FUNCTION(lock, LOCK_CONTENDED) {
  Word result = REAL(lock);
  acquire(a);
  return result;
}

FUNCTION(read, READ_CONTENDED) {
  Word result = REAL(read);
  acquire(a);
  return result;
}

FUNCTION(write, WRITE_CONTENDED) {
  Word result = REAL(write);
  acquire(a);
  return result;
}

// A condition variable lets its mutex go and takes it again.
FUNCTION(wait, CONDVAR_WAIT) {
  release(b);
  Word result = REAL(wait);
  acquire(b);
  return result;
}

FUNCTION(wait_timeout, CONDVAR_WAIT_TIMEOUT) {
  release(b);
  Word result = REAL(wait_timeout);
  acquire(b);
  return result;
}

FUNCTION(barrier, BARRIER_WAIT) {
  release(a);
  Word result = REAL(barrier);
  acquire(a);
  return result;
}

// A scoped thread says that it has ended, in one of the words of what it shares with its scope.
FUNCTION(scoped, SCOPED_END) {
  for (Word word = 0; word < 3; ++word) release(a + word * sizeof(Word));
  return REAL(scoped);
}

// A `Once` calls a closure and then says that it is done; behind the closure is the last moment
// before that. `c` and `d` are the closure: its data and its table, in which the last two of five
// words are its calls.
struct Closure {
  Word data;
  const Word *table;
  Word once;
};

static Word once_body(struct Closure *closure, Word b, Word c, Word d, Word e, Word f) {
  Word result = ((Word(*)(WORDS))closure->table[4])(closure->data, b, c, d, e, f);
  release(closure->once);
  return result;
}

FUNCTION(once, ONCE_CALL) {
  static const Word table[5] = {0, sizeof(struct Closure), sizeof(Word), (Word)once_body, (Word)once_body};
  struct Closure closure = {c, (const Word *)d, a};
  Word result = real_once(a, b, (Word)&closure, (Word)table, e, f);
  acquire(a);
  return result;
}

// Printing: one at a time.
static char printing;

FUNCTION(print, PRINT) {
  acquire((Word)&printing);
  Word result = REAL(print);
  release((Word)&printing);
  return result;
}

FUNCTION(eprint, EPRINT) {
  acquire((Word)&printing);
  Word result = REAL(eprint);
  release((Word)&printing);
  return result;
}

// The first thread of a test program is the harness's, which comes built without the sanitizer, too:
// what it reads and writes is not looked at. Tests have threads of their own.
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

// Not there in programs with a harness of their own.
Word real_test_main(WORDS) __attribute__((weak));

FUNCTION(test_main, TEST_MAIN) {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  Word result = REAL(test_main);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return result;
}

// Whoever drops the last `Arc` acquires by a fence, which ThreadSanitizer does not model: so the
// count that it takes acquires too. 3 is a release, 4 is both.
uint64_t real_sub(volatile uint64_t *, uint64_t, int) __asm__("__real___tsan_atomic64_fetch_sub");
uint64_t wrap_sub(volatile uint64_t *, uint64_t, int) __asm__("__wrap___tsan_atomic64_fetch_sub");
uint64_t wrap_sub(volatile uint64_t *address, uint64_t value, int order) {
  return real_sub(address, value, order == 3 ? 4 : order);
}
