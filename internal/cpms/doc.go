// Package cpms translates between a ControlPlaneMachineSet and the plan for it: the object and its Machines into the facts that
// internal/machineset decides by, and a Machine that is planned into an object. What differs from platform to platform (failure domains,
// comparison of provider specs) is left to the library of the platform's own operator.
package cpms
