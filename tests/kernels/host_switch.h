// Coroutines: a place is where one was left. `swapcontext` asks the system for signals at each change, which takes longer
// than all that a thread does between two meetings; it stays for processors whose registers are not known here.
#pragma once
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
struct StackPlace { void* stack; };
extern "C" __attribute__((visibility("hidden"))) void change_stacks(void** from, void* to);
asm(R"(
.pushsection .text
.globl change_stacks
.hidden change_stacks
.type change_stacks, @function
change_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size change_stacks, .-change_stacks
.popsection
)");
// `entry` never returns; it begins as if called: a return address above which the stack is aligned.
inline void begin_at(StackPlace& place, char* stack, size_t size, void (*entry)()) {
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15));
    for (int i = 1; i <= 8; ++i) top[-i] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    place.stack = top - 8;
}
inline void go(StackPlace& from, const StackPlace& to) { change_stacks(&from.stack, to.stack); }
#else
typedef ucontext_t StackPlace;
inline void begin_at(StackPlace& place, char* stack, size_t size, void (*entry)()) {
    getcontext(&place);
    place.uc_stack.ss_sp = stack, place.uc_stack.ss_size = size, place.uc_link = nullptr;
    makecontext(&place, entry, 0);
}
inline void go(StackPlace& from, const StackPlace& to) { swapcontext(&from, &to); }
#endif
