/** A schedule: cron in words, with the expression as its title; other schedules as the server names them. */
import { signal } from '@preact/signals'
import { t } from '../strings'

/** What may have an expression of cron in it: for others, its translator is not loaded. */
const CRON = /(?:^|, )[\d*]\S*(?: \S+){4}/
/** The translator of cron is loaded when a page has the first expression. */
const inWords = signal<((text: string) => string) | null>(null)
let asked = false

export function Schedule({ summary }: { summary: string | null | undefined }) {
  if (!summary) return <>{t.dags.manual}</>
  if (!CRON.test(summary)) return <>{summary}</>
  if (!asked) {
    asked = true
    void import('./cron').then((module) => (inWords.value = module.inWords), () => undefined)
  }
  return <span title={summary}>{inWords.value?.(summary) ?? summary}</span>
}
