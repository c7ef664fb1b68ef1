/** Why something is in its state: now, and each step that led there. */
import type { components } from '../api/schema'
import { clock, duration, inZone, moment } from '../format'
import { t } from '../strings'
import { Mark } from './State'

export function History({ why }: { why: components['schemas']['Why'] }) {
  return (
    <ol class="history">
      {why.history.map((step, at) => (
        <li key={at}>
          <time dateTime={step.at} title={moment(step.at)} class="num dim small">{clock(step.at)}</time>
          <Mark state={step.state} />
          <span class="grow">
            {inZone(step.text)}
            {step.actor && !step.text.includes(step.actor) && <span class="dim"> {step.actor}</span>}
          </span>
          <span class="num small dim nowrap">{step.seconds === null ? '' : duration(step.seconds)}</span>
        </li>
      ))}
      {why.waiting_for.map((text) => (
        <li key={text} class="now">
          <span class="small dim">{t.task.whyNow}</span>
          <Mark state={why.state} />
          <span class="grow">{inZone(text)}</span>
        </li>
      ))}
    </ol>
  )
}
