import { chidori, run } from "chidori:agent";

// Two host calls a step: one that the world sees, and one that only the journal sees.
run(async (input: { world: string; steps: string }) => {
  let answers = 0;
  for (let step = 1; step <= Number(input.steps); step++) {
    const answer = await fetch(`${input.world}/effects/${step}`, { method: "POST" });
    if ((await answer.text()) === `done ${step}`) answers++;
    await chidori.log("step", { step, answers });
  }
  return { answers };
});
